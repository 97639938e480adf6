//! What a far side said, fit for an error and a line of a log.

/// On one line, because a far side must not be able to forge lines of our log; without what steers a terminal; and no
/// longer than anybody reads.
pub(crate) fn one_line(text: &str, longest: usize) -> String {
    let mut line = String::new();
    let mut length = 0;
    let mut is_between = false;
    for sign in text.trim().chars() {
        if sign.is_whitespace() {
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
        line.push(if sign.is_control() { char::REPLACEMENT_CHARACTER } else { sign });
        length += 1;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_one_and_what_is_long_is_cut() {
        assert_eq!(one_line(" <h1>\r\n 502\n", 200), "<h1> 502");
        assert_eq!(one_line("a\u{1b}[2Jb\0", 200), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(one_line("éééé", 3), "ééé…");
        assert_eq!(one_line("ééé ", 3), "ééé");
        assert_eq!(one_line("\n", 3), "");
    }
}
