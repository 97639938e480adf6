//! Prepares remote text for error messages and log lines.

/// Collapses whitespace, replaces control characters and truncates to `longest` characters. A remote server can then
/// neither forge log lines nor control a terminal.
pub(crate) fn one_line(text: &str, longest: usize) -> String {
    let mut line = String::new();
    let mut length = 0;
    let mut is_between = false;
    for character in text.trim().chars() {
        if character.is_whitespace() {
            is_between = true;
            continue;
        }
        if length >= longest {
            line.push('…');
            break;
        }
        if std::mem::take(&mut is_between) {
            line.push(' ');
            length += 1;
        }
        line.push(if character.is_control() { char::REPLACEMENT_CHARACTER } else { character });
        length += 1;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_one_short_line() {
        assert_eq!(one_line(" <h1>\r\n 502\n", 200), "<h1> 502");
        assert_eq!(one_line("a\u{1b}[2Jb\0", 200), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(one_line("éééé", 3), "ééé…");
        assert_eq!(one_line("ééé ", 3), "ééé");
        assert_eq!(one_line("\n", 3), "");
    }
}
