//! Terminal protocols that transmit the picture's file: those of kitty and iTerm2.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// Maximum length of the base64 data in one command of kitty's protocol.
const KITTY_CHUNK_BYTES: usize = 4096;

pub(super) fn encode_kitty(png: &[u8]) -> String {
    let packed = BASE64_STANDARD.encode(png);
    let mut commands = String::with_capacity(packed.len() + packed.len() / 64 + 64);
    let mut rest = packed.as_str();
    let mut is_first = true;
    while is_first || !rest.is_empty() {
        let (chunk, later) = rest.split_at(rest.len().min(KITTY_CHUNK_BYTES));
        // `a=T`: transmit and display; `f=100`: PNG; `q=2`: no response, because it would be read as typed input.
        let control = if is_first { "a=T,f=100,q=2," } else { "q=2," };
        let more = u8::from(!later.is_empty());
        commands.push_str(&format!("\x1b_G{control}m={more};{chunk}\x1b\\"));
        (rest, is_first) = (later, false);
    }
    commands.push('\n');
    commands
}

pub(super) fn encode_iterm2(bytes: &[u8]) -> String {
    let packed = BASE64_STANDARD.encode(bytes);
    let size = bytes.len();
    format!("\x1b]1337;File=inline=1;size={size};preserveAspectRatio=1:{packed}\x07\n")
}

#[cfg(test)]
mod tests {
    use super::{KITTY_CHUNK_BYTES, encode_iterm2, encode_kitty};
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;

    /// Splits the text into commands, each with its controls and payload.
    fn commands(text: &str) -> Vec<(String, String)> {
        let body = text.strip_suffix('\n').unwrap();
        let parts = body.split_terminator("\x1b\\");
        parts
            .map(|part| {
                let inner = part.strip_prefix("\x1b_G").unwrap();
                let (control, payload) = inner.split_once(';').unwrap();
                (control.to_owned(), payload.to_owned())
            })
            .collect()
    }

    #[test]
    fn kittys_chunks_add_up_to_the_file_and_only_the_last_ends_it() {
        // Lengths around one and two chunks of base64, which encodes three bytes as four letters.
        for length in [0, 1, 3071, 3072, 3073, 6144, 6145, 20_000] {
            let file: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let commands = commands(&encode_kitty(&file));
            let payload: String = commands.iter().map(|(_, p)| p.as_str()).collect();
            assert_eq!(BASE64_STANDARD.decode(payload).unwrap(), file, "{length}");
            let last = commands.len() - 1;
            for (number, (control, payload)) in commands.iter().enumerate() {
                assert_eq!(control.starts_with("a=T,f=100,"), number == 0);
                assert_eq!(control.ends_with("m=0"), number == last, "{length}");
                assert!(payload.len() <= KITTY_CHUNK_BYTES);
                assert!(number == last || payload.len() == KITTY_CHUNK_BYTES);
            }
        }
    }

    #[test]
    fn iterm2s_command_holds_the_file_and_its_size() {
        let command = encode_iterm2(b"a picture");
        let (head, rest) = command.split_once(':').unwrap();
        assert!(
            head.starts_with("\x1b]1337;File=inline=1;size=9;"),
            "{head}"
        );
        let payload = rest.strip_suffix("\x07\n").unwrap();
        assert_eq!(BASE64_STANDARD.decode(payload).unwrap(), b"a picture");
    }
}
