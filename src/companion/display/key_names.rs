//! Names of keys, as people write them: `Return`, `ctrl+shift+t`, `ä`.

use super::DisplayRefusal;
use std::collections::HashMap;
use std::sync::OnceLock;
use xkeysym::Keysym;

/// Key names besides those of X, in lower case.
const KEY_ALIASES: &[(&str, Keysym)] = &[
    ("alt", Keysym::Alt_L),
    ("backspace", Keysym::BackSpace),
    ("cmd", Keysym::Super_L),
    ("control", Keysym::Control_L),
    ("ctrl", Keysym::Control_L),
    ("del", Keysym::Delete),
    ("delete", Keysym::Delete),
    ("down", Keysym::Down),
    ("end", Keysym::End),
    ("enter", Keysym::Return),
    ("esc", Keysym::Escape),
    ("escape", Keysym::Escape),
    ("home", Keysym::Home),
    ("insert", Keysym::Insert),
    ("left", Keysym::Left),
    ("meta", Keysym::Meta_L),
    ("pagedown", Keysym::Next),
    ("page_down", Keysym::Next),
    ("pageup", Keysym::Prior),
    ("page_up", Keysym::Prior),
    ("plus", Keysym::plus),
    ("return", Keysym::Return),
    ("right", Keysym::Right),
    ("shift", Keysym::Shift_L),
    ("space", Keysym::space),
    ("super", Keysym::Super_L),
    ("tab", Keysym::Tab),
    ("up", Keysym::Up),
    ("win", Keysym::Super_L),
];

/// Parses keys that are pressed together, in their order.
pub(super) fn parse_keys(text: &str) -> Result<Vec<u32>, DisplayRefusal> {
    // A plus is a key, too: `+`, `ctrl++`.
    let (text, is_plus) = match text.strip_suffix('+') {
        Some(rest) => (rest.strip_suffix('+').unwrap_or(rest), true),
        None => (text, false),
    };
    let names = text.split('+').filter(|_| !text.is_empty());
    let mut keys = names.map(parse_key).collect::<Result<Vec<u32>, _>>()?;
    keys.extend(is_plus.then_some(Keysym::plus.raw()));
    match keys.is_empty() {
        true => Err(DisplayRefusal::Invalid("the name of a key is empty".into())),
        false => Ok(keys),
    }
}

fn parse_key(name: &str) -> Result<u32, DisplayRefusal> {
    let mut characters = name.chars();
    if let (Some(only), None) = (characters.next(), characters.next()) {
        return Ok(keysym_for_character(only));
    }
    let usual = KEY_ALIASES
        .iter()
        .find(|(usual, _)| usual.eq_ignore_ascii_case(name));
    let known = usual.map(|(_, key)| key.raw());
    let known = known.or_else(|| {
        keysym_names()
            .get(name.to_ascii_lowercase().as_str())
            .copied()
    });
    known.ok_or_else(|| {
        DisplayRefusal::Invalid(format!(
            "`{name}` is not a key: give a character, or a name such as `Return`, `ctrl`, `F5` or `Page_Down`"
        ))
    })
}

/// The keysym that types a character.
pub(super) fn keysym_for_character(character: char) -> u32 {
    match character {
        '\n' | '\r' => Keysym::Return.raw(),
        '\t' => Keysym::Tab.raw(),
        '\u{8}' => Keysym::BackSpace.raw(),
        '\u{1b}' => Keysym::Escape.raw(),
        other => Keysym::from_char(other).raw(),
    }
}

/// X's own key names, in lower case unless that is the name of another key.
fn keysym_names() -> &'static HashMap<String, u32> {
    static KEYSYM_NAMES: OnceLock<HashMap<String, u32>> = OnceLock::new();
    KEYSYM_NAMES.get_or_init(|| {
        let special = (0xfe00..=0xffff)
            .chain(0x20..=0xff)
            .chain(0x1008_ff00..=0x1008_ffff);
        let mut names = HashMap::new();
        for raw in special {
            if let Some(name) = Keysym::new(raw).name() {
                let name = name.trim_start_matches("XK_").trim_start_matches("XF86_");
                names.entry(name.to_ascii_lowercase()).or_insert(raw);
            }
        }
        names
    })
}

#[cfg(test)]
mod tests {
    use super::parse_keys;
    use xkeysym::Keysym;

    fn keys(text: &str) -> Vec<Keysym> {
        parse_keys(text)
            .unwrap()
            .into_iter()
            .map(Keysym::new)
            .collect()
    }

    #[test]
    fn key_aliases_are_parsed() {
        assert_eq!(keys("Return"), [Keysym::Return]);
        assert_eq!(keys("ENTER"), [Keysym::Return]);
        assert_eq!(
            keys("ctrl+Shift+t"),
            [Keysym::Control_L, Keysym::Shift_L, Keysym::t]
        );
        assert_eq!(keys("F5"), [Keysym::F5]);
        assert_eq!(keys("Page_Down"), [Keysym::Next]);
        assert_eq!(keys("KP_Enter"), [Keysym::KP_Enter]);
        assert_eq!(keys("ISO_Left_Tab"), [Keysym::ISO_Left_Tab]);
        assert_eq!(keys("ctrl++"), [Keysym::Control_L, Keysym::plus]);
        assert_eq!(keys("+"), [Keysym::plus]);
        assert_eq!(keys("A"), [Keysym::A]);
        assert_eq!(keys("€"), [Keysym::EuroSign]);
    }

    #[test]
    fn unknown_keys_are_refused() {
        for text in ["", "hyperdrive", "ctrl+", "ctrl+nokey"] {
            // `ctrl+` is control and plus, which are keys.
            assert_eq!(parse_keys(text).is_ok(), text == "ctrl+", "{text}");
        }
    }
}
