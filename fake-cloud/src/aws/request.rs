//! Parses the signature, the attempt number and the body of an AWS request.

use std::borrow::Cow;
use std::io::Read;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request};

use crate::body::{self, BodyProblem};
use crate::ec2::Form;
use crate::service::Service;
use crate::world::AwsError;

/// Maximum length of a body, in bytes.
const MAX_BODY: usize = 2 * 1024 * 1024;
/// Maximum length of a decompressed body, in bytes.
const MAX_DECOMPRESSED: usize = 8 * 1024 * 1024;

/// Algorithm of a signature in a header or a URL.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Returns whether a browser requests the start page. AWS clients accept no HTML, and sign their requests.
pub(super) fn is_browser<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.method() == Method::GET
        && request.uri().path() == "/"
        && request.uri().query().is_none()
        && !headers.contains_key("authorization")
        && header(headers, "accept").is_some_and(|accepted| accepted.contains("text/html"))
}

/// Credential scope of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope<'a> {
    pub(super) service: Service,
    pub(super) region: &'a str,
    pub(super) access_key: &'a str,
}

/// Signature of a request: the `Authorization` header, or the `X-Amz-Credential` of a presigned URL.
pub(super) fn credential<'a>(headers: &'a HeaderMap, query: &'a str) -> Option<Cow<'a, str>> {
    if let Some(authorization) = header(headers, "authorization") {
        return authorization
            .strip_prefix(ALGORITHM)
            .and_then(|rest| rest.split([',', ' ']).find_map(|part| part.strip_prefix("Credential=")))
            .map(Cow::Borrowed);
    }
    let query = Form::decode(query.as_bytes()).ok()?;
    if query.get("X-Amz-Algorithm") != Some(ALGORITHM) {
        return None;
    }
    query.get("X-Amz-Credential").map(|credential| Cow::Owned(credential.to_owned()))
}

/// Parses the access key, the region and the service from `<key>/<date>/<region>/<service>/aws4_request`.
pub(super) fn scope(credential: Option<&str>) -> Result<Scope<'_>, AwsError> {
    // An access key may contain slashes, so the parts are counted from the end.
    let mut parts = credential.unwrap_or_default().rsplitn(5, '/');
    let (Some("aws4_request"), Some(service), Some(region), Some(_), Some(access_key)) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(AwsError::from_code("AuthFailure"));
    };
    let service = match service {
        "ec2" => Service::Ec2,
        "monitoring" => Service::Cloudwatch,
        "sts" => Service::Sts,
        other => {
            let message =
                format!("This cloud has EC2 (ec2), CloudWatch (monitoring) and STS (sts), but no service '{other}'.");
            return Err(AwsError::new("AuthFailure", message));
        }
    };
    Ok(Scope { service, region, access_key })
}

/// Parses the attempt number from a header such as `amz-sdk-request: attempt=2; max=3`.
pub(super) fn attempt(headers: &HeaderMap) -> Option<u32> {
    header(headers, "amz-sdk-request")?
        .split(';')
        .find_map(|part| part.trim().strip_prefix("attempt="))
        .and_then(|number| number.parse().ok())
}

pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Reads a body and decompresses it if it is gzip-encoded.
pub(super) async fn body(headers: &HeaderMap, body: Incoming) -> Result<Bytes, AwsError> {
    let bytes = body::read(body, MAX_BODY).await.map_err(|problem| match problem {
        BodyProblem::TooLong => AwsError::from_code("RequestEntityTooLarge"),
        BodyProblem::Incomplete => AwsError::new("IncompleteBody", "The request body ended before it was complete."),
    })?;
    match header(headers, "content-encoding") {
        None | Some("" | "identity") => Ok(bytes),
        Some("gzip") => decompress(&bytes),
        Some(other) => {
            Err(AwsError::new("InvalidParameterValue", format!("The content encoding '{other}' is not supported.")))
        }
    }
}

fn decompress(compressed: &[u8]) -> Result<Bytes, AwsError> {
    let mut decompressed = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(compressed).take(MAX_DECOMPRESSED as u64 + 1);
    reader
        .read_to_end(&mut decompressed)
        .map_err(|_| AwsError::new("InvalidParameterValue", "The request body is not valid gzip."))?;
    if decompressed.len() > MAX_DECOMPRESSED {
        return Err(AwsError::from_code("RequestEntityTooLarge"));
    }
    Ok(decompressed.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use hyper::header::HeaderValue;

    use super::*;

    fn signed(authorization: &'static str) -> Result<(Service, String, String), AwsError> {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static(authorization));
        let credential = credential(&headers, "");
        scope(credential.as_deref()).map(|scope| (scope.service, scope.region.to_owned(), scope.access_key.to_owned()))
    }

    #[test]
    fn service_region_and_key_come_from_the_signature() {
        let scope = signed(
            "AWS4-HMAC-SHA256 Credential=AK/IA/20260101/eu-west-1/ec2/aws4_request, SignedHeaders=host, Signature=0",
        );
        assert_eq!(scope, Ok((Service::Ec2, "eu-west-1".to_owned(), "AK/IA".to_owned())));
    }

    #[test]
    fn unsigned_and_foreign_requests_are_rejected() {
        for bad in [
            "",
            "Basic dXNlcjpwYXNz",
            "AWS4-HMAC-SHA256 Credential=AKIA, Signature=0",
            "AWS4-HMAC-SHA256 Credential=ec2/aws4_request",
            "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request",
        ] {
            assert_eq!(signed(bad).expect_err(bad).code, "AuthFailure");
        }
    }

    #[test]
    fn presigned_urls_carry_the_signature() {
        let presigned = "Action=DescribeRegions&X-Amz-Algorithm=AWS4-HMAC-SHA256\
                         &X-Amz-Credential=AKIA%2F20260101%2Feu-west-1%2Fec2%2Faws4_request&X-Amz-Signature=0";
        let headers = HeaderMap::new();
        let found = credential(&headers, presigned);
        let scope = scope(found.as_deref()).expect("a scope");
        assert_eq!((scope.service, scope.region, scope.access_key), (Service::Ec2, "eu-west-1", "AKIA"));
        assert_eq!(credential(&headers, "X-Amz-Credential=AKIA"), None);
    }

    #[test]
    fn attempt_is_parsed_from_the_sdk_header() {
        let mut headers = HeaderMap::new();
        assert_eq!(attempt(&headers), None);
        headers.insert("amz-sdk-request", HeaderValue::from_static("ttl=20260101T000000Z; attempt=2; max=3"));
        assert_eq!(attempt(&headers), Some(2));
    }

    #[test]
    fn decompression_bombs_are_rejected() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for _ in 0..9 {
            encoder.write_all(&vec![0; 1024 * 1024]).expect("compresses");
        }
        let compressed = encoder.finish().expect("compresses");
        assert!(compressed.len() < 100_000);
        assert_eq!(decompress(&compressed).expect_err("rejected").status, 413);
        assert_eq!(
            decompress(&compressed[..compressed.len() / 2]).expect_err("rejected").code,
            "InvalidParameterValue"
        );
    }
}
