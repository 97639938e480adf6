//! Refuses EC2 responses that are cut off or malformed.
//!
//! The SDK's XML decoder stops at the first token it cannot read and returns the elements before it as if they were all
//! of them. Instances behind that point would then count as absent.

use aws_sdk_ec2::config::interceptors::AfterDeserializationInterceptorContextRef;
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use xmlparser::{ElementEnd, Token, Tokenizer};

/// Fails a successful response whose body is not one complete XML document.
#[derive(Debug)]
pub(super) struct CompleteResponse;

impl Intercept for CompleteResponse {
    fn name(&self) -> &'static str {
        "CompleteResponse"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        if response.status().is_success() && !is_complete(response.body().bytes().unwrap_or_default()) {
            return Err("truncated or malformed XML in the response".into());
        }
        Ok(())
    }
}

/// Whether a body is XML in which every element is closed. It is read by the tokenizer that the SDK decodes with.
fn is_complete(body: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(body) else { return false };
    let mut open = Vec::new();
    let mut elements = 0_usize;
    for token in Tokenizer::from(text) {
        match token {
            // The qualified name, after `<`.
            Ok(Token::ElementStart { span, .. }) => {
                elements += 1;
                open.push(&span.as_str()[1..]);
            }
            Ok(Token::ElementEnd { end: ElementEnd::Empty, .. }) => drop(open.pop()),
            // The same name, between `</` and `>`.
            Ok(Token::ElementEnd { end: ElementEnd::Close(..), span }) => {
                let rest = open.pop().and_then(|name| span.as_str()[2..].strip_prefix(name));
                if rest.is_none_or(|rest| rest.trim_start() != ">") {
                    return false;
                }
            }
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    open.is_empty() && elements > 0
}

#[cfg(test)]
mod tests {
    use super::is_complete;

    const DOCUMENT: &str = "<?xml version=\"1.0\"?>\n<a x=\"y\"><b/><c:d>&amp;<![CDATA[<]]></c:d><!-- --></a>";

    #[test]
    fn truncated_document_is_incomplete() {
        assert!(is_complete(DOCUMENT.as_bytes()));
        for cut in 0..DOCUMENT.len() {
            assert!(!is_complete(&DOCUMENT.as_bytes()[..cut]), "{}", &DOCUMENT[..cut]);
        }
    }

    #[test]
    fn malformed_document_is_incomplete() {
        let bodies = ["", "text", "<html><br></html>", "<a>\0</a>", "<a></b>", "<a/><b>", "</a>", "<a></ba>", "<"];
        for body in bodies {
            assert!(!is_complete(body.as_bytes()), "{body}");
        }
        assert!(!is_complete(b"<a>\xff</a>"));
    }
}
