//! Colors of a traceback of Python: places and names in the line of a frame, the exception, the markers below code.

use console::Style;

/// The line with colors, if `style` has colors.
pub(super) fn style_traceback_line(line: &str, style: &Style) -> String {
    let place = style.clone().magenta();
    let strong = place.clone().bold();
    let content = line.trim_start();
    let indent = &line[..line.len() - content.len()];
    if let Some((file, rest)) = content
        .strip_prefix("File \"")
        .and_then(|rest| rest.split_once("\", line "))
    {
        let file = place.apply_to(file);
        return match rest.split_once(", in ") {
            Some((number, name)) => format!(
                "{indent}File \"{file}\", line {}, in {}",
                place.apply_to(number),
                place.apply_to(name)
            ),
            None => format!("{indent}File \"{file}\", line {}", place.apply_to(rest)),
        };
    }
    if content.contains('^') && content.chars().all(|c| "^~ ".contains(c)) {
        let marker = style.clone().red().bold();
        return format!("{indent}{}", marker.apply_to(content));
    }
    let (name, message) = match line.split_once(": ") {
        Some((name, message)) => (name, Some(message)),
        None => (line.trim_end_matches(':'), None),
    };
    let is_name = |c: char| c.is_alphanumeric() || "_.<>".contains(c);
    let is_exception = !name.is_empty() && name.chars().all(is_name);
    match message {
        Some(message) if is_exception => {
            format!("{}: {}", strong.apply_to(name), place.apply_to(message))
        }
        None if is_exception => strong.apply_to(line).to_string(),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::style_traceback_line;
    use console::Style;

    #[test]
    fn the_text_of_a_line_stays_the_same_and_its_parts_are_colored() {
        let colors = Style::new().force_styling(true);
        for (line, colored) in [
            ("Traceback (most recent call last):", false),
            ("  File \"<cell 3>\", line 1, in f", true),
            ("  File \"<cell 3>\", line 2", true),
            ("    return 1 / 0", false),
            ("           ~~^~~", true),
            ("ZeroDivisionError: division by zero", true),
            ("KeyboardInterrupt", true),
            ("a.b.OwnError: no: thing", true),
            (
                "During handling of the above exception, another exception occurred:",
                false,
            ),
            ("", false),
            ("a message: of two words", false),
        ] {
            let styled = style_traceback_line(line, &colors);
            assert_eq!(console::strip_ansi_codes(&styled), line);
            assert_eq!(styled != line, colored, "{styled:?}");
        }
    }
}
