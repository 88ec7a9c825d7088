//! Calls that are repeated while the kernel is not done with what came before: a queue, a TAP or an interface whose
//! last holder has just ended.
//!
//! For whatever opens one. It sleeps between two tries, so no packet may wait for its thread.

use std::time::Duration;

/// How often a call is repeated, and how far apart.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) tries: u32,
    pub(crate) pause: Duration,
}

impl Patience {
    /// Makes the call `once`, and repeats it while it fails by an error that `passes`.
    pub(crate) fn exert<T, E>(
        self,
        passes: impl Fn(&E) -> bool,
        mut once: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        for _ in 0..self.tries {
            match once() {
                Err(error) if passes(&error) => std::thread::sleep(self.pause),
                other => return other,
            }
        }
        once()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_repeated_while_its_error_passes() {
        let patience = Patience { tries: 3, pause: Duration::ZERO };
        let after = |answers: &[Result<u8, u8>]| {
            let mut answers = answers.iter().copied();
            let got = patience.exert(|error| *error == 1, || answers.next().unwrap());
            (got, answers.len())
        };
        assert_eq!(after(&[Ok(5), Ok(6)]), (Ok(5), 1));
        assert_eq!(after(&[Err(1), Err(1), Ok(5), Ok(6)]), (Ok(5), 1));
        assert_eq!(after(&[Err(1), Err(2), Ok(5)]), (Err(2), 1), "this one does not pass");
        assert_eq!(after(&[Err(1), Err(1), Err(1), Err(1), Ok(5)]), (Err(1), 1), "it is at its end");
    }
}
