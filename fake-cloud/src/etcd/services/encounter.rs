//! A call that is being carried out: what it turns out to be about, and what comes in between because of that.

use std::sync::OnceLock;

use parking_lot::Mutex;
use tonic::Status;

use super::super::proto::kv::{Request, RequestOp, TxnRequest};
use super::context::Context;
use super::request::readable;
use crate::interruption::{Admitted, Ending, Instead, Keys};

/// A call under way. Its keys are known only once it is decoded, which is later than it was let in.
pub(super) struct Encounter {
    admitted: Mutex<Admitted>,
    /// How it ends, if it ends without an answer.
    silence: OnceLock<Ending>,
}

impl Encounter {
    pub(super) fn new(admitted: Admitted) -> Self {
        Self { admitted: Mutex::new(admitted), silence: OnceLock::new() }
    }

    /// Notes what the call is about, and has the rules about keys strike before it is carried out.
    ///
    /// # Errors
    /// What a rule answers instead.
    pub(super) async fn meet(&self, c: &Context, keys: Keys<'_>) -> Result<(), Status> {
        let mut fate = {
            let mut admitted = self.admitted.lock();
            admitted.request.subject = keys.first().map(|key| readable(key));
            admitted.meet(keys)
        };
        fate.wait(c.store.clock()).await;
        if fate.lost.is_some() {
            // The first one to say how it ends is right.
            let _ = self.silence.set(Ending::Lost);
        }
        match fate.instead {
            None => Ok(()),
            Some(Instead::Answer(response)) => {
                Err(Status::from_header_map(response.headers()).unwrap_or_else(|| Status::unavailable("a fault rule")))
            }
            Some(Instead::Cut) => {
                let _ = self.silence.set(Ending::Cut);
                Err(Status::unavailable("a fault rule"))
            }
        }
    }

    /// The call, and how it ends if it ends without an answer.
    pub(super) fn end(self) -> (Admitted, Option<Ending>) {
        (self.admitted.into_inner(), self.silence.into_inner())
    }
}

/// All keys a transaction compares, reads or writes, in either branch.
pub(super) fn keys_of(txn: &TxnRequest) -> Vec<&[u8]> {
    let mut keys: Vec<&[u8]> = txn.compare.iter().map(|compare| &compare.key[..]).collect();
    let mut nested = vec![txn];
    while let Some(txn) = nested.pop() {
        for RequestOp { request } in txn.success.iter().chain(&txn.failure) {
            match request {
                Some(Request::Range(range)) => keys.push(&range.key),
                Some(Request::Put(put)) => keys.push(&put.key),
                Some(Request::DeleteRange(delete)) => keys.push(&delete.key),
                Some(Request::Txn(inner)) => {
                    keys.extend(inner.compare.iter().map(|compare| &compare.key[..]));
                    nested.push(inner);
                }
                None => {}
            }
        }
    }
    keys
}
