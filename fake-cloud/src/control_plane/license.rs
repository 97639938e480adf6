//! License operations of a worker: requested, started, completed or failed.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::ApiError;
use super::input::Input;
use super::records::Records;
use super::worker::Worker;

/// Kind of license operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LicenseOperation {
    /// Register with a token.
    Register,
    /// Release the license.
    Deregister,
}

/// Step of a license operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LicenseStep {
    /// An operator has requested the operation.
    Request,
    /// The controller has sent it to CML.
    Start,
    /// CML has completed it.
    Complete,
    /// CML has rejected it for good.
    Fail,
}

impl LicenseOperation {
    const fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Deregister => "deregister",
        }
    }
}

impl Records {
    /// Moves a license operation to its next step.
    ///
    /// *Request* stores the operation (and the token) in the record; `reregister` asks to replace a registration. *Start* marks it as sent. *Complete* makes the
    /// pending token the current one, or removes it. *Fail* clears the operation and the pending token. All steps
    /// except *request* are idempotent.
    ///
    /// # Errors
    /// 404 for an unknown worker, 409 for a version conflict or while the other operation is pending, 422 for an
    /// invalid field.
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
            let reregister = step == LicenseStep::Request && input.boolean("reregister")?;
            let license = draft.worker.object_mut("license");
            let pending = license.get("pending_operation").and_then(Value::as_str);
            if let Some(other) = pending.filter(|pending| *pending != operation.name() && step != LicenseStep::Request)
            {
                let current = format!("{other} pending");
                return Err(ApiError::WrongState {
                    action: "go on with the license",
                    current,
                    accepted: operation.name().into(),
                });
            }
            match step {
                LicenseStep::Request => {
                    license.insert("pending_operation".into(), operation.name().into());
                    license.insert("pending_token".into(), token);
                    license.insert("operation_in_progress".into(), false.into());
                    if reregister {
                        license.insert("reregister".into(), true.into());
                    }
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
                license.remove("reregister");
            }
            draft.add_event(event(operation, step), json!({"operation": operation.name()}));
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
