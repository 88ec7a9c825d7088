//! Where a response of memcached's text protocol ends in a stream.

/// Longest line that is believed in: a key has 250 bytes, an error some words.
const MAX_LINE: usize = 2048;
/// Most bytes of a value that are believed in; the client stores shorter ones.
const MAX_VALUE: usize = 128 << 20;

/// Length of the response that `bytes` begin with; `None`: it is not there in whole. Values and a
/// line that ends them, or one line.
///
/// # Errors
/// In words: it is none.
pub(super) fn response(bytes: &[u8]) -> Result<Option<usize>, String> {
    let mut end = 0;
    loop {
        let rest = &bytes[end..];
        let Some(line) = rest.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
            return if rest.len() < MAX_LINE { Ok(None) } else { Err(no_response(rest)) };
        };
        let (line, is_value) = (&rest[..=line], rest.starts_with(b"VALUE "));
        end += line.len();
        if !is_value {
            return Ok(Some(end));
        }
        // VALUE key flags bytes [cas]
        let len = line.split(|byte| byte.is_ascii_whitespace()).nth(3);
        let len = len.and_then(|len| std::str::from_utf8(len).ok()?.parse().ok());
        let Some(len) = len.filter(|len: &usize| *len <= MAX_VALUE) else { return Err(no_response(rest)) };
        end += len + "\r\n".len();
        if bytes.len() < end {
            return Ok(None);
        }
    }
}

fn no_response(bytes: &[u8]) -> String {
    format!("{} is no response in memcached's text protocol", super::shown(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_ends_where_it_says() {
        for whole in [
            "STORED\r\n",
            "END\r\n",
            "SERVER_ERROR object too large for cache\r\n",
            "VALUE a 0 3\r\nxyz\r\nEND\r\n",
            "VALUE a 4294967295 0\r\n\r\nEND\r\n",
            // Lines and ends within a value are no lines and ends.
            "VALUE a 0 12\r\n\r\nEND\r\nVALUE\r\nEND\r\n",
            "VALUE a 0 1 77\r\nx\r\nVALUE b 0 2\r\nxy\r\nEND\r\n",
        ] {
            for at in 0..whole.len() {
                assert_eq!(response(&whole.as_bytes()[..at]), Ok(None), "{whole:?} to {at}");
            }
            assert_eq!(response(whole.as_bytes()), Ok(Some(whole.len())), "{whole:?}");
            let more = format!("{whole}VALUE c");
            assert_eq!(response(more.as_bytes()), Ok(Some(whole.len())), "{more:?}");
        }
    }

    #[test]
    fn what_is_no_response_is_said() {
        for none in ["VALUE a 0\r\n", "VALUE a 0 x\r\n", "VALUE a 0 -1\r\n", "VALUE a 0 999999999\r\n"] {
            let error = response(none.as_bytes()).unwrap_err();
            assert!(error.contains(none.trim_end()) && error.contains("no response"), "{error}");
        }
        assert!(response(&[b'x'; MAX_LINE]).is_err());
        assert_eq!(response(&[b'x'; MAX_LINE - 1]), Ok(None));
    }
}
