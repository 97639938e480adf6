//! What the world's fault rules mean to etcd.

use std::time::Duration;

use axum::body::Body;
use tonic::{Code, Status};

use crate::etcd::{EtcdStore, Fault};
use crate::faults::Action;
use crate::interruption::Interruption;

/// What an action means to a call of etcd. A fault of the store as a whole happens here and now, and the call goes on
/// to meet it.
pub(super) fn interruption(store: &EtcdStore, action: &Action) -> Option<Interruption> {
    match action {
        Action::Error { code, message, .. } => {
            let words = message.clone().unwrap_or_else(|| code.clone());
            let status = Status::new(grpc_code(code), words);
            Some(Interruption::Instead(status.into_http::<Body>()))
        }
        Action::Latency { seconds, on } => {
            Duration::try_from_secs_f64(*seconds).ok().map(|delay| Interruption::Late(delay, *on))
        }
        Action::Reset => Some(Interruption::Cut),
        Action::DropResponse => Some(Interruption::Afterwards(axum::response::Response::default())),
        Action::Custom { name, parameters } => {
            if let Ok(fault) = Fault::named(name, parameters.get("lease")) {
                store.inflict(fault);
            }
            None
        }
        Action::VisibilityLag { .. }
        | Action::Omit { .. }
        | Action::EmptyPage
        | Action::PartialPage { .. }
        | Action::Shuffle => None,
    }
}

/// gRPC's code of a name, however it is spelled; what is not one of them means that etcd cannot be had.
fn grpc_code(name: &str) -> Code {
    let plain = |name: &str| name.replace(['-', '_', ' '], "").to_ascii_lowercase();
    let wanted = plain(name);
    (1..=16).map(Code::from_i32).find(|code| plain(&format!("{code:?}")) == wanted).unwrap_or(Code::Unavailable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_however_it_is_spelled() {
        for name in ["deadline-exceeded", "DEADLINE_EXCEEDED", "DeadlineExceeded"] {
            assert_eq!(grpc_code(name), Code::DeadlineExceeded);
        }
        assert_eq!(grpc_code("on fire"), Code::Unavailable);
    }
}
