//! Whether an answer is whole: all of it there, and XML.
//!
//! The client does not say. It stops at what it cannot read, and gives what it has as if that were all: instances that
//! come after would be gone.

use aws_sdk_ec2::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use thiserror::Error;
use xmlparser::{ElementEnd, Token, Tokenizer};

use super::received::{Look, look_at};

/// Refuses an answer that is not whole.
#[derive(Debug)]
pub(super) struct Whole;

/// What is wrong with an answer.
#[derive(Debug, Error)]
pub(super) enum NotWhole {
    #[error("the answer is no text in UTF-8")]
    NotText(#[from] std::str::Utf8Error),
    #[error("the answer is no XML")]
    NotXml(#[from] xmlparser::Error),
    #[error("the answer is cut off, or its parts do not fit together")]
    CutOff,
}

impl Intercept for Whole {
    fn name(&self) -> &'static str {
        "Whole"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        look_at(context.response_mut(), Self);
        Ok(())
    }
}

impl Look for Whole {
    fn look_on(&mut self, _so_far: &[u8]) {}

    fn look_at_all(self: Box<Self>, answer: Vec<u8>) -> Result<Vec<u8>, BoxError> {
        check(&answer)?;
        Ok(answer)
    }
}

/// Whether an answer is whole, by the words of what the client reads it with.
pub(super) fn check(answer: &[u8]) -> Result<(), NotWhole> {
    let mut open = Vec::new();
    let mut elements = 0_usize;
    for token in Tokenizer::from(std::str::from_utf8(answer)?) {
        match token? {
            Token::ElementStart { prefix, local, .. } => {
                elements += 1;
                open.push((prefix.as_str(), local.as_str()));
            }
            Token::ElementEnd { end, .. } => match end {
                ElementEnd::Open => {}
                ElementEnd::Empty => drop(open.pop()),
                ElementEnd::Close(prefix, local) => {
                    if open.pop() != Some((prefix.as_str(), local.as_str())) {
                        return Err(NotWhole::CutOff);
                    }
                }
            },
            _ => {}
        }
    }
    if open.is_empty() && elements > 0 { Ok(()) } else { Err(NotWhole::CutOff) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_answer_passes() {
        let whole = "<?xml version=\"1.0\"?>\n<a x=\"y\"><b/><c:d>&amp;<![CDATA[<]]></c:d><!-- --></a>";
        check(whole.as_bytes()).expect("whole");
        for cut in 22..whole.len() {
            assert!(check(&whole.as_bytes()[..cut]).is_err(), "{}", &whole[..cut]);
        }
        for odd in ["", "text", "<html><br></html>", "<a>\0</a>", "<a></b>", "<a/><b>", "</a>"] {
            assert!(check(odd.as_bytes()).is_err(), "{odd}");
        }
        assert!(check(b"<a>\xff</a>").is_err());
    }
}
