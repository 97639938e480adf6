//! YAML from outside: what no reader could take in is refused before one tries.

/// As deep as the reader follows. Its scanner slows down with the square of the depth, so a megabyte of brackets would
/// keep it busy for hours before it says the same.
const DEEPEST: usize = 128;

/// Refuses a document with more brackets open at once than any reader follows. Brackets in texts count too, which no
/// document that means something minds.
pub(crate) fn check_depth(document: &[u8]) -> Result<(), String> {
    let mut depth: usize = 0;
    for byte in document {
        depth = match byte {
            b'[' | b'{' => depth + 1,
            b']' | b'}' => depth.saturating_sub(1),
            _ => depth,
        };
        if depth > DEEPEST {
            return Err(format!("it is nested too deep; accepted: at most {DEEPEST} brackets open at once"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_may_be_many_but_not_all_open_at_once() {
        assert!(check_depth("[{}]".repeat(100_000).as_bytes()).is_ok());
        assert!(check_depth("}]".repeat(1000).as_bytes()).is_ok());
        for deep in ["[", "{a: ", "[{"] {
            assert!(check_depth(deep.repeat(200).as_bytes()).is_err(), "{deep}");
        }
    }
}
