//! kube-runtime's applier over its reflector's store.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use futures_util::stream::{self, Stream, StreamExt as _};
use kube_core::{ClusterResourceScope, ObjectMeta, Resource};
use kube_runtime::controller::{Action, Config, ReconcileRequest, applier};
use kube_runtime::reflector::ObjectRef;
use kube_runtime::reflector::store::{Store, Writer};
use kube_runtime::watcher::Event;
use lcm_sdk::Worker;
use parking_lot::Mutex;

use super::{Again, name, worker};

/// A worker as a custom resource of Kubernetes.
#[derive(Debug, Clone)]
pub struct WorkerObject {
    metadata: ObjectMeta,
    /// The record, as the resource's spec.
    pub spec: Worker,
}

impl Resource for WorkerObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Worker".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "example.org".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "workers".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Requests released to the applier one by one, as a watch would.
#[derive(Default)]
struct Feed {
    released: usize,
    allowed: usize,
    waker: Option<Waker>,
}

/// kube-runtime's applier over a store of workers.
pub struct KubeApplier {
    // Keeps the store alive, as a running reflector does.
    _writer: Writer<WorkerObject>,
    feed: Arc<Mutex<Feed>>,
    reconciles: Pin<Box<dyn Stream<Item = bool>>>,
    size: usize,
}

impl KubeApplier {
    /// Creates an applier over `size` workers that runs at most `concurrency` reconciles at once; zero, its default,
    /// means no limit.
    #[must_use]
    pub fn new(size: usize, concurrency: u16, again: Again) -> Self {
        let mut writer = Writer::<WorkerObject>::new(());
        writer.apply_watcher_event(&Event::Init);
        for number in 0..size {
            let metadata = ObjectMeta { name: Some(name(number)), ..ObjectMeta::default() };
            writer.apply_watcher_event(&Event::InitApply(WorkerObject { metadata, spec: worker(number) }));
        }
        writer.apply_watcher_event(&Event::InitDone);
        let store = writer.as_reader();
        let feed = Arc::<Mutex<Feed>>::default();
        let action = match again {
            Again::OnChange => Action::await_change(),
            Again::After(delay) => Action::requeue(delay),
        };
        let reconciles = applier(
            move |worker: Arc<WorkerObject>, _: Arc<()>| {
                let action = action.clone();
                Box::pin(async move {
                    std::hint::black_box(&worker.spec);
                    Ok::<_, Infallible>(action)
                })
            },
            |_, _, _| Action::await_change(),
            Arc::new(()),
            store.clone(),
            requests(store, Arc::clone(&feed)),
            Config::default().concurrency(concurrency),
        );
        Self { _writer: writer, feed, reconciles: Box::pin(reconciles.map(|result| result.is_ok())), size }
    }

    /// Reconciles every worker once.
    ///
    /// # Panics
    /// If a reconcile fails.
    pub async fn reconcile_all(&mut self) {
        let waker = {
            let mut feed = self.feed.lock();
            feed.allowed += self.size;
            feed.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        for _ in 0..self.size {
            assert_eq!(self.reconciles.next().await, Some(true), "a no-op reconcile failed");
        }
    }
}

/// Yields a request for each worker in turn, as far as the feed allows.
fn requests(
    store: Store<WorkerObject>,
    feed: Arc<Mutex<Feed>>,
) -> impl Stream<Item = Result<ReconcileRequest<WorkerObject>, Infallible>> {
    let objects = store.state();
    stream::poll_fn(move |context| {
        let mut feed = feed.lock();
        if feed.released == feed.allowed {
            feed.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let object = &objects[feed.released % objects.len()];
        feed.released += 1;
        Poll::Ready(Some(Ok(ObjectRef::from_obj(&**object).into())))
    })
}
