//! The calls of one connection, carried out in the connection's own task.
//!
//! HTTP/2 hands each call to an executor, which usually makes a task of it: then the connection wakes the call when the
//! client has said something, and the call wakes the connection when it has something to say. Here they take turns in
//! one task, which is woken once for both.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, Stream};
use hyper::rt::Executor;
use parking_lot::Mutex;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls of one connection. Those that are not over end with it.
#[derive(Debug, Default)]
pub(super) struct Calls {
    begun: Begun,
    under_way: FuturesUnordered<Call>,
}

impl Calls {
    /// Where the connection leaves the calls that it begins.
    pub(super) fn begun(&self) -> Begun {
        self.begun.clone()
    }

    /// Carries on each call that can go on, those that were begun included.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        self.under_way.extend(self.begun.calls.lock().drain(..));
        while let Poll::Ready(Some(())) = Pin::new(&mut self.under_way).poll_next(context) {}
    }
}

/// Calls that were begun, and not carried on yet. Clones hold the same ones.
#[derive(Clone, Default)]
pub(super) struct Begun {
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Begun {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.lock().is_empty()
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begun {
    fn execute(&self, call: F) {
        self.calls.lock().push(Box::pin(call));
    }
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun").field("calls", &self.calls.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn calls_wake_the_task_of_their_connection_and_each_goes_on_by_itself() {
        let (mut calls, over) = (Calls::default(), Arc::<AtomicUsize>::default());
        let senders: Vec<_> = (0..100)
            .map(|_| {
                let ((sender, told), over) = (oneshot::channel::<()>(), Arc::clone(&over));
                calls.begun().execute(async move {
                    told.await.expect("a word");
                    tokio::task::yield_now().await;
                    over.fetch_add(1, Ordering::SeqCst);
                });
                sender
            })
            .collect();
        assert!(!calls.begun().is_empty());
        tokio::spawn(async move {
            for sender in senders.into_iter().rev() {
                tokio::task::yield_now().await;
                sender.send(()).expect("a call that listens");
            }
        });
        let turn = |context: &mut Context<'_>| {
            calls.poll(context);
            if over.load(Ordering::SeqCst) == 100 { Poll::Ready(()) } else { Poll::Pending }
        };
        poll_fn(turn).await;
        assert!(calls.under_way.is_empty() && calls.begun().is_empty());
    }

    #[tokio::test]
    async fn calls_that_are_not_over_end_with_their_connection() {
        let (mut calls, (sender, told)) = (Calls::default(), oneshot::channel::<()>());
        calls.begun().execute(async move { drop(told.await) });
        poll_fn(|context| {
            calls.poll(context);
            Poll::Ready(())
        })
        .await;
        assert!(!sender.is_closed());
        drop(calls);
        assert!(sender.is_closed());
    }
}
