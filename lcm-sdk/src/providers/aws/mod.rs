//! AWS: EC2 and CloudWatch.
//!
//! ```no_run
//! use lcm_sdk::providers::aws::{Account, CloudWatch, Ec2, Tuning};
//! use lcm_sdk::ports::Compute;
//! use lcm_sdk::telemetry::Telemetry;
//!
//! # async fn example() {
//! let account = Account::from_environment(Tuning::default(), &Telemetry::default()).await;
//! let (ec2, cloudwatch) = (Ec2::new(account.clone()), CloudWatch::new(account));
//! println!("{:?}", ec2.instance("us-east-1", &"i-0c71f2b3d4e5f6a7b".into()).await);
//! # }
//! ```

mod account;
mod agent_metrics;
mod call_policy;
mod clients;
mod cloudwatch;
pub mod codes;
mod complete;
mod convert;
mod describe;
mod ec2;
mod image_cache;
mod metric_names;

pub use account::{Account, Tuning};
pub use cloudwatch::CloudWatch;
pub use ec2::Ec2;

use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

use super::sanitize::one_line;
use crate::lifecycle::failure::{CallFailure, FailureKind};

/// Longest part of EC2's words that is kept: an encoded authorization message fits, which operators decode.
const QUOTED: usize = 2_000;

/// The same where EC2 names the instances it does not know: as many as one call asks for, because each is an answer.
const NAMES_QUOTED: usize = describe::MOST_IDS * 24 + 200;

/// Longest code that is kept; those we know are shorter.
const CODE: usize = 100;

/// Puts an AWS SDK error into the core's words. "No such instance" comes out as [`FailureKind::Refused`]; whoever
/// asked about an instance checks [`codes::INSTANCE_NOT_FOUND`] first, because there it is an answer.
pub fn failure<E>(error: &SdkError<E, HttpResponse>) -> CallFailure
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let message = || one_line(&DisplayErrorContext(error).to_string(), QUOTED);
    match error {
        SdkError::ServiceError(service) => {
            let (code, status) = (service.err().code(), service.raw().status().as_u16());
            let kind = code.and_then(codes::kind).unwrap_or_else(|| codes::kind_of_status(status));
            let longest = if code.is_some_and(describe::names_instances) { NAMES_QUOTED } else { QUOTED };
            let said = service.err().message().map_or_else(message, |said| one_line(said, longest));
            CallFailure { code: code.map(|code| one_line(code, CODE)), ..CallFailure::new(kind, said) }
        }
        SdkError::DispatchFailure(_) if is_refused_connection(error) => {
            CallFailure::new(FailureKind::Unreachable, message())
        }
        SdkError::ResponseError(_) => CallFailure::new(FailureKind::Unparsable, message()),
        SdkError::ConstructionFailure(_) => CallFailure::new(FailureKind::Refused, message()),
        // Time-outs, connections cut in the middle, and whatever the SDK adds: the call may have been carried out.
        _ => CallFailure::new(FailureKind::Unclear, message()),
    }
}

/// Whether nobody listened. The SDK does not say; the cause of its cause does.
fn is_refused_connection(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::config::http::HttpResponse;
    use aws_sdk_ec2::error::ErrorMetadata;
    use aws_sdk_ec2::operation::run_instances::RunInstancesError;

    use super::*;

    fn said(code: Option<&str>, status: u16) -> CallFailure {
        let mut metadata = ErrorMetadata::builder().message("as EC2 put it");
        if let Some(code) = code {
            metadata = metadata.code(code);
        }
        let response = HttpResponse::new(status.try_into().expect("a status"), "".into());
        failure(&SdkError::service_error(RunInstancesError::generic(metadata.build()), response))
    }

    #[test]
    fn a_code_decides_and_without_one_the_status_does() {
        assert_eq!(said(Some("UnauthorizedOperation"), 403).kind, FailureKind::Refused);
        assert_eq!(said(Some("RequestLimitExceeded"), 503).kind, FailureKind::Throttled);
        assert_eq!(said(Some("InsufficientInstanceCapacity"), 500).kind, FailureKind::NoCapacity);
        assert_eq!(said(Some("IdempotentInstanceTerminated"), 400).kind, FailureKind::LaunchDied);
        assert_eq!(said(Some("SomethingNew"), 500).kind, FailureKind::Unclear);
        assert_eq!(said(Some("SomethingNew"), 400).kind, FailureKind::Refused);
        assert_eq!(said(None, 503).kind, FailureKind::Unclear);
        assert_eq!(said(Some("AuthFailure"), 401).to_string(), "AuthFailure: as EC2 put it");
    }

    #[test]
    fn what_ec2_says_stays_on_its_line_and_is_cut() {
        let metadata = ErrorMetadata::builder().code("C\n".repeat(999)).message("m\r\n".repeat(9_999));
        let response = HttpResponse::new(400.try_into().expect("a status"), "".into());
        let told =
            failure(&SdkError::service_error(RunInstancesError::generic(metadata.build()), response)).to_string();
        assert!(told.len() < 3_000 && !told.contains(['\n', '\r']), "{told:?}");
    }

    #[test]
    fn every_instance_that_ec2_names_is_heard() {
        let ids: Vec<String> = (0..describe::MOST_IDS).map(|number| format!("i-{number:017x}")).collect();
        let message = format!("The instance IDs '{}' do not exist", ids.join(", "));
        let metadata = ErrorMetadata::builder().code("InvalidInstanceID.NotFound").message(&message).build();
        let response = HttpResponse::new(400.try_into().expect("a status"), "".into());
        let told = failure(&SdkError::service_error(RunInstancesError::generic(metadata), response));
        assert_eq!(told.message, message);
    }

    #[test]
    fn a_time_out_may_have_been_carried_out() {
        let error: SdkError<RunInstancesError, HttpResponse> = SdkError::timeout_error("10 s");
        assert_eq!(failure(&error).kind, FailureKind::Unclear);
        assert!(!failure(&error).kind.did_nothing());
    }
}
