//! The licence of a worker: intents, and how carrying them out goes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::ApiError;
use super::input::Input;
use super::records::Records;
use super::worker::Worker;

/// A licence operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LicenseOperation {
    /// Register a token.
    Register,
    /// Give the licence back.
    Deregister,
}

/// A step of a licence operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LicenseStep {
    /// An operator wants it.
    Request,
    /// It was handed to CML.
    Start,
    /// CML has done it.
    Complete,
    /// CML gave a final no.
    Fail,
}

impl LicenseOperation {
    const fn word(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Deregister => "deregister",
        }
    }
}

impl Records {
    /// Takes a licence operation one step on.
    ///
    /// *Request* leaves the intent (and the token) on the record. *Start* marks it as handed over. *Complete* makes
    /// the pending token the token, or forgets it. *Fail* clears intent and pending token: it is the last word.
    /// All but *request* can be repeated without harm.
    ///
    /// # Errors
    /// 404, 409 on another version or while the other operation is pending, 422.
    pub fn license_step(
        &self,
        id: &str,
        expected: Option<u64>,
        operation: LicenseOperation,
        step: LicenseStep,
        input: &Input,
    ) -> Result<Arc<Worker>, ApiError> {
        let stepped = self.change(id, expected, |draft| {
            let token = match (operation, step) {
                (LicenseOperation::Register, LicenseStep::Request) => {
                    Value::from(input.required_text("token", "a Smart Licensing token")?)
                }
                _ => Value::Null,
            };
            let error = input.text("error")?.or(input.text("error_message")?).map(str::to_owned);
            let license = draft.worker.object_mut("license");
            let pending = license.get("pending_operation").and_then(Value::as_str);
            if let Some(other) = pending.filter(|pending| *pending != operation.word() && step != LicenseStep::Request)
            {
                let current = format!("{other} pending");
                return Err(ApiError::WrongState {
                    action: "go on with the licence",
                    current,
                    accepted: operation.word().into(),
                });
            }
            match step {
                LicenseStep::Request => {
                    license.insert("pending_operation".into(), operation.word().into());
                    license.insert("pending_token".into(), token);
                    license.insert("operation_in_progress".into(), false.into());
                }
                LicenseStep::Start => drop(license.insert("operation_in_progress".into(), true.into())),
                LicenseStep::Complete => {
                    let pending = license.get("pending_token").cloned().unwrap_or_default();
                    match operation {
                        LicenseOperation::Register if !pending.is_null() => {
                            drop(license.insert("token".into(), pending))
                        }
                        LicenseOperation::Register => {}
                        LicenseOperation::Deregister => drop(license.insert("token".into(), Value::Null)),
                    }
                    let status = if operation == LicenseOperation::Register { "registered" } else { "unregistered" };
                    license.insert("status".into(), status.into());
                    license.insert("last_error".into(), Value::Null);
                }
                LicenseStep::Fail => drop(license.insert("last_error".into(), error.into())),
            }
            if matches!(step, LicenseStep::Complete | LicenseStep::Fail) {
                license.insert("pending_token".into(), Value::Null);
                license.insert("pending_operation".into(), Value::Null);
                license.insert("operation_in_progress".into(), false.into());
            }
            draft.announce(event(operation, step), json!({"operation": operation.word()}));
            Ok(())
        });
        Ok(stepped?.0)
    }
}

const fn event(operation: LicenseOperation, step: LicenseStep) -> &'static str {
    match (operation, step) {
        (LicenseOperation::Register, LicenseStep::Request) => "cml_worker.license.registration.requested.v1",
        (LicenseOperation::Register, LicenseStep::Start) => "cml_worker.license.registration.started.v1",
        (LicenseOperation::Register, LicenseStep::Complete) => "cml_worker.license.registration.completed.v1",
        (LicenseOperation::Register, LicenseStep::Fail) => "cml_worker.license.registration.failed.v1",
        (LicenseOperation::Deregister, LicenseStep::Request) => "cml_worker.license.deregistration.requested.v1",
        (LicenseOperation::Deregister, LicenseStep::Start) => "cml_worker.license.deregistration.started.v1",
        (LicenseOperation::Deregister, LicenseStep::Complete) => "cml_worker.license.deregistration.completed.v1",
        (LicenseOperation::Deregister, LicenseStep::Fail) => "cml_worker.license.deregistration.failed.v1",
    }
}
