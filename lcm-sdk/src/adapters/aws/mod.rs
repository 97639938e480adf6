//! AWS: EC2 and CloudWatch.

pub mod codes;

use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};

use crate::core::failure::{CallFailure, FailureKind};

/// Puts an AWS SDK error into the core's words. "No such instance" comes out as [`FailureKind::Refused`]; whoever
/// asked about an instance checks [`codes::INSTANCE_NOT_FOUND`] first, because there it is an answer.
pub fn failure<E>(error: &SdkError<E, HttpResponse>) -> CallFailure
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let message = || DisplayErrorContext(error).to_string();
    match error {
        SdkError::ServiceError(service) => {
            let (code, status) = (service.err().code(), service.raw().status().as_u16());
            let kind = code.and_then(codes::kind).unwrap_or_else(|| codes::kind_of_status(status));
            let said = service.err().message().map_or_else(message, str::to_owned);
            CallFailure { kind, code: code.map(str::to_owned), message: said }
        }
        SdkError::DispatchFailure(dispatch) if dispatch.is_io() => {
            // The SDK does not tell a refused connection from one cut in the middle of a call.
            CallFailure::new(FailureKind::Unclear, message())
        }
        SdkError::ResponseError(_) => CallFailure::new(FailureKind::Unparsable, message()),
        SdkError::ConstructionFailure(_) => CallFailure::new(FailureKind::Refused, message()),
        // Timeouts, other dispatch failures, and whatever the SDK adds: the call may have been carried out.
        _ => CallFailure::new(FailureKind::Unclear, message()),
    }
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
    fn a_time_out_may_have_been_carried_out() {
        let error: SdkError<RunInstancesError, HttpResponse> = SdkError::timeout_error("10 s");
        assert_eq!(failure(&error).kind, FailureKind::Unclear);
        assert!(!failure(&error).kind.did_nothing());
    }
}
