//! The STS query API: reports the account of the caller.

use crate::ec2::{Form, Xml, is_common_parameter};
use crate::world::{AwsError, hash_text, mix};

const NAMESPACE: &str = "https://sts.amazonaws.com/doc/2011-06-15/";

/// Operations that are served.
pub(crate) const OPERATIONS: [&str; 1] = ["GetCallerIdentity"];

/// Executes a request of an account and encodes the response.
pub(crate) fn handle(form: &Form<'_>, account: &str, request_id: &str) -> Result<Vec<u8>, AwsError> {
    match form.get("Action").unwrap_or_default() {
        "GetCallerIdentity" => match form.iter().find(|(name, _)| !is_common_parameter(name)) {
            None => Ok(caller_identity(account, request_id)),
            Some((name, _)) => {
                let message = format!("GetCallerIdentity has no parameter {name}");
                Err(AwsError::new("InvalidQueryParameter", message))
            }
        },
        unknown => {
            let version = form.get("Version").unwrap_or_default();
            Err(AwsError::new("InvalidAction", format!("Could not find operation {unknown} for version {version}")))
        }
    }
}

fn caller_identity(account: &str, request_id: &str) -> Vec<u8> {
    let mut xml = Xml::document(512);
    xml.raw("<GetCallerIdentityResponse xmlns=\"");
    xml.raw(NAMESPACE);
    xml.raw("\">");
    xml.element("GetCallerIdentityResult", |xml| {
        xml.plain("Arn", format_args!("arn:aws:iam::{account}:user/fake"));
        xml.plain("UserId", format_args!("AIDA{:016X}", mix(hash_text(account))));
        xml.text("Account", account);
    });
    xml.element("ResponseMetadata", |xml| xml.text("RequestId", request_id));
    xml.close("GetCallerIdentityResponse");
    xml.finish()
}

/// Encodes an error.
pub(crate) fn encode_error(error: &AwsError, request_id: &str) -> Vec<u8> {
    let mut xml = Xml::document(512);
    xml.raw("<ErrorResponse xmlns=\"");
    xml.raw(NAMESPACE);
    xml.raw("\">");
    xml.element("Error", |xml| {
        xml.text("Type", if error.status >= 500 { "Receiver" } else { "Sender" });
        xml.text("Code", &error.code);
        xml.text("Message", &error.message);
    });
    xml.text("RequestId", request_id);
    xml.close("ErrorResponse");
    xml.finish()
}
