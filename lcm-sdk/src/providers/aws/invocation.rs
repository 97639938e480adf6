//! Invocation ids, by which AWS recognizes the attempts of one call.
//!
//! The SDK draws an id for each of its calls. Its retries are disabled, so that each attempt here is a call of the SDK; the
//! attempts of a [`Caller`](super::api::Caller) get one id instead.

use aws_runtime::invocation_id::{InvocationId, InvocationIdGenerator};
use aws_sdk_ec2::error::BoxError;

tokio::task_local! {
    static CALL: InvocationId;
}

/// Returns a new id, in the form of a UUID of version 4.
pub(super) fn new() -> InvocationId {
    let bits: u128 = rand::random();
    let hex = format!("{bits:032x}");
    InvocationId::new(format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..]))
}

/// Makes an attempt of the call with this id.
pub(super) async fn attempt<F: Future>(call: InvocationId, attempt: F) -> F::Output {
    CALL.scope(call, attempt).await
}

/// Gives a request the id of its call. A request outside of calls has none.
#[derive(Debug)]
pub(super) struct CallIds;

impl InvocationIdGenerator for CallIds {
    fn generate(&self) -> Result<Option<InvocationId>, BoxError> {
        Ok(CALL.try_with(InvocationId::clone).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn attempts_have_the_id_of_their_call() {
        let call = new();
        let seen = attempt(call.clone(), async { CallIds.generate() }).await;
        assert_eq!(seen.expect("an id"), Some(call.clone()));
        assert_eq!(CallIds.generate().expect("no error"), None);
        assert_ne!(call, new());
    }
}
