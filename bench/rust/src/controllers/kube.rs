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
    /// What it is about.
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

/// What is to be looked at next, handed out one by one as a watch would.
#[derive(Default)]
struct Feed {
    given: usize,
    allowed: usize,
    waker: Option<Waker>,
}

/// The applier over so many workers.
pub struct KubeApplier {
    // Alive as long as the applier, as the reflector that would write to it is.
    _writer: Writer<WorkerObject>,
    feed: Arc<Mutex<Feed>>,
    passes: Pin<Box<dyn Stream<Item = bool>>>,
    size: usize,
}

impl KubeApplier {
    /// An applier whose store knows so many workers; it runs at most `concurrency` passes at once, or any number if
    /// that is zero, which is its default.
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
        let passes = applier(
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
        Self { _writer: writer, feed, passes: Box::pin(passes.map(|pass| pass.is_ok())), size }
    }

    /// Looks at every worker once.
    ///
    /// # Panics
    /// If a pass fails, which none can.
    pub async fn look_at_all(&mut self) {
        let waker = {
            let mut feed = self.feed.lock();
            feed.allowed += self.size;
            feed.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        for _ in 0..self.size {
            assert_eq!(self.passes.next().await, Some(true), "a pass that does nothing fails");
        }
    }
}

/// A request for each worker in turn, as often as the feed allows.
fn requests(
    store: Store<WorkerObject>,
    feed: Arc<Mutex<Feed>>,
) -> impl Stream<Item = Result<ReconcileRequest<WorkerObject>, Infallible>> {
    let objects = store.state();
    stream::poll_fn(move |context| {
        let mut feed = feed.lock();
        if feed.given == feed.allowed {
            feed.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let object = &objects[feed.given % objects.len()];
        feed.given += 1;
        Poll::Ready(Some(Ok(ObjectRef::from_obj(&**object).into())))
    })
}
