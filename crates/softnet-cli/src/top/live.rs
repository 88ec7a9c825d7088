//! `softnet top` on a terminal: asks, draws, and does as the keys say.
//!
//! One thread, which sleeps until a key, a signal or the end of the interval. Whatever ends it (a key, SIGINT, SIGTERM, a
//! panic, the instance), the terminal is as it was before.

use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use softnet::control::Client;
use softnet_dev::process::Signals;

use super::interval::{Interval, Sample};
use super::screen::{Ui, draw};
use crate::Failure;

/// The terminal while it is ours.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone need not be as it was.
        let _ = ratatui::try_restore();
    }
}

fn terminal(error: std::io::Error) -> Failure {
    Failure::of("the terminal", error)
}

/// Runs until the user has seen enough, or the instance stops.
pub(super) fn run(client: &Client, interval: Duration) -> Result<(), Failure> {
    // Before the terminal is changed: what can't be reached is told as ever.
    let mut sample = Sample::take(client).map_err(|error| Failure::Run(error.to_string()))?;
    let signals = Signals::new().map_err(|error| Failure::of("waiting for signals", error))?;
    // Restores the terminal also when we panic.
    let mut screen = match ratatui::try_init() {
        Ok(terminal) => Screen(terminal),
        Err(error) => {
            // Half-way, perhaps.
            let _ = ratatui::try_restore();
            return Err(terminal(error));
        }
    };
    let (mut shown, mut ui) = (None, Ui::default());
    let mut next = Instant::now() + interval;
    loop {
        screen.0.draw(|frame| draw(frame, shown.as_ref(), &ui)).map_err(terminal)?;
        let left = next.saturating_duration_since(Instant::now());
        wait(&signals, (!ui.paused).then_some(left))?;
        if signals.taken().is_some() {
            return Ok(());
        }
        while event::poll(Duration::ZERO).map_err(terminal)? {
            if let Event::Key(key) = event::read().map_err(terminal)?
                && key.kind != KeyEventKind::Release
                && press(&mut ui, shown.as_ref(), key.code, key.modifiers)
            {
                return Ok(());
            }
        }
        if !ui.paused && Instant::now() >= next {
            let now = sample.next(client)?;
            shown = Interval::between(&sample, &now).or(shown);
            sample = now;
            next = Instant::now() + interval;
        }
    }
}

/// Waits for a key, a signal, a change of the terminal's size, or until `timeout` is over.
fn wait(signals: &Signals, timeout: Option<Duration>) -> Result<(), Failure> {
    // A key that was read already, and the handler of SIGWINCH, which is there from now on.
    if event::poll(Duration::ZERO).map_err(terminal)? {
        return Ok(());
    }
    let timeout =
        timeout.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(terminal(error.into())),
    }
    // The terminal is gone.
    if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        return Err(Failure::PipeClosed);
    }
    Ok(())
}

/// Does as a key says. Whether that was to quit.
fn press(ui: &mut Ui, shown: Option<&Interval>, key: KeyCode, modifiers: KeyModifiers) -> bool {
    match key {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') => return true,
        KeyCode::Char('?') => ui.help = !ui.help,
        // Any other key closes the help.
        _ if ui.help => ui.help = false,
        KeyCode::Char('p' | ' ') => ui.paused = !ui.paused,
        KeyCode::Char('s') => ui.sort = ui.sort.next(),
        KeyCode::Up | KeyCode::Char('k') => shown.into_iter().for_each(|shown| ui.choose(shown, -1)),
        KeyCode::Down | KeyCode::Char('j') => shown.into_iter().for_each(|shown| ui.choose(shown, 1)),
        _ => {}
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::screen::Sort;
    use super::*;

    #[test]
    fn keys_do_what_the_help_says() {
        let mut ui = Ui::default();
        let mut press = |key| press(&mut ui, None, key, KeyModifiers::NONE);
        assert!(press(KeyCode::Char('q')));
        for key in ['p', 's', '?'] {
            assert!(!press(KeyCode::Char(key)));
        }
        // Closes the help, and does nothing else.
        assert!(!press(KeyCode::Char('p')));
        assert!(ui.paused && !ui.help && ui.sort == Sort::Packets);
        assert!(super::press(&mut ui, None, KeyCode::Char('c'), KeyModifiers::CONTROL));
    }
}
