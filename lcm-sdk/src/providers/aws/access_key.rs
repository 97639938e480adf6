//! The access key of sent requests.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use aws_sdk_ec2::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_ec2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_ec2::error::BoxError;
use parking_lot::Mutex;

/// Fingerprint of the access key of the last request.
#[derive(Debug, Clone, Default)]
pub(super) struct LastKey(Arc<Mutex<Option<u64>>>);

impl LastKey {
    /// `None` before the first signed request.
    pub(super) fn get(&self) -> Option<u64> {
        *self.0.lock()
    }
}

/// Notes the access key of every request that is sent.
#[derive(Debug)]
pub(super) struct KeyInterceptor(pub(super) LastKey);

impl Intercept for KeyInterceptor {
    fn name(&self) -> &'static str {
        "KeyInterceptor"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let header = context.request().headers().get("authorization").unwrap_or_default();
        *self.0.0.lock() = access_key(header).map(fingerprint);
        Ok(())
    }
}

/// The access key in the header of a signed request: `AWS4-HMAC-SHA256 Credential=KEY/date/region/service/aws4_request, …`.
fn access_key(authorization: &str) -> Option<&str> {
    let (_, credential) = authorization.split_once("Credential=")?;
    credential.split_once('/').map(|(key, _)| key).filter(|key| !key.is_empty())
}

fn fingerprint(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_key_is_read_from_the_signature() {
        let header = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260206/us-east-1/ec2/aws4_request, SignedHeaders=host";
        assert_eq!(access_key(header), Some("AKIDEXAMPLE"));
        assert_eq!(access_key("Bearer Credential="), None);
        assert_eq!(access_key(""), None);
        assert_ne!(fingerprint("AKIDEXAMPLE"), fingerprint("ASIAEXAMPLE"));
    }
}
