//! Checks of untrusted YAML before parsing.

/// Maximum nesting depth of the parser. Its scanner takes time quadratic in the depth, so a megabyte of brackets would
/// block it for hours before it fails.
const MAX_DEPTH: usize = 128;

/// Rejects a document with more than [`MAX_DEPTH`] open brackets. Brackets inside strings count too; real documents do
/// not come near the limit.
pub(crate) fn check_depth(document: &[u8]) -> Result<(), String> {
    let mut depth: usize = 0;
    for byte in document {
        depth = match byte {
            b'[' | b'{' => depth + 1,
            b']' | b'}' => depth.saturating_sub(1),
            _ => depth,
        };
        if depth > MAX_DEPTH {
            return Err(format!("nested too deep; accepted: at most {MAX_DEPTH} brackets open at once"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_brackets_count_toward_the_limit() {
        assert!(check_depth("[{}]".repeat(100_000).as_bytes()).is_ok());
        assert!(check_depth("}]".repeat(1000).as_bytes()).is_ok());
        for deep in ["[", "{a: ", "[{"] {
            assert!(check_depth(deep.repeat(200).as_bytes()).is_err(), "{deep}");
        }
    }
}
