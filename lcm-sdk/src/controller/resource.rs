//! Resources that a controller reconciles, as their author implements them.

use std::future::Future;

use crate::controller::lease::LeaderLease;
use crate::controller::result::WorkResult;
use crate::controller::shards::ShardOwnership;
use crate::lifecycle::failure::CallFailure;

/// A kind of resource that a controller reconciles.
///
/// ```
/// use lcm_sdk::CallFailure;
/// use lcm_sdk::controller::{LeaderLease, ListRequest, ResourceList, Resource, WorkResult};
///
/// struct Greeter;
///
/// impl Resource for Greeter {
///     type Object = String;
///
///     fn key<'a>(&self, name: &'a String) -> &'a str {
///         name
///     }
///
///     async fn list(&self, _: &ListRequest) -> Result<ResourceList<String>, CallFailure> {
///         Ok(ResourceList::from(vec!["Ada".to_owned(), "Grace".to_owned()]))
///     }
///
///     async fn reconcile(&self, name: String, _: LeaderLease) -> WorkResult {
///         println!("hello {name}");
///         WorkResult::success()
///     }
/// }
/// ```
pub trait Resource: Send + Sync + 'static {
    /// One object of this kind.
    type Object: Send + Sync + 'static;

    /// Name of an object, unique within the kind.
    fn key<'a>(&self, object: &'a Self::Object) -> &'a str;

    /// Lists objects. The controller drops those that another controller owns.
    fn list(
        &self,
        request: &ListRequest,
    ) -> impl Future<Output = Result<ResourceList<Self::Object>, CallFailure>> + Send;

    /// Reads one object; `None` if it does not exist. The default lists everything: override it where one object can be
    /// read alone.
    fn fetch(&self, key: &str) -> impl Future<Output = Result<Option<Self::Object>, CallFailure>> + Send {
        async move {
            let everything = ShardOwnership::from_lease(LeaderLease::unfenced());
            let listing = self.list(&ListRequest::new(ListScope::Everything, everything)).await?;
            Ok(listing.objects.into_iter().find(|object| self.key(object) == key))
        }
    }

    /// Reconciles one object. Check the lease before every change, and send its fence along with writes. A panic is
    /// caught, and a reconcile that takes too long is dropped.
    fn reconcile(&self, object: Self::Object, lease: LeaderLease) -> impl Future<Output = WorkResult> + Send;

    /// Called with all objects of a listing before the first of them is reconciled, to read in one call what each
    /// reconcile would read alone.
    fn prepare(&self, objects: &[Self::Object]) -> impl Future<Output = ()> + Send {
        let _ = objects;
        async {}
    }

    /// Whether a listed object is as its last reconcile left it. A delay that the reconcile requested is cut short for
    /// any other. The default relies on the watch to report changes.
    fn is_known(&self, object: &Self::Object) -> bool {
        let _ = object;
        true
    }

    /// Called with every watched key that names an object, when it changes and when the watch begins. The change of an
    /// object is queued after this returns, so it must not block.
    fn note_key(&self, name: &str, key: &[u8]) {
        let _ = (name, key);
    }

    /// Whether an object that was reported as changed only carries this controller's own last write.
    fn is_echo(&self, object: &Self::Object) -> bool {
        let _ = object;
        false
    }
}

/// A request for a listing.
#[derive(Debug, Clone)]
pub struct ListRequest {
    scope: ListScope,
    ownership: ShardOwnership,
}

impl ListRequest {
    pub(crate) const fn new(scope: ListScope, ownership: ShardOwnership) -> Self {
        Self { scope, ownership }
    }

    /// The objects to list.
    pub const fn scope(&self) -> ListScope {
        self.scope
    }

    /// Whether this controller owns the object of this name. Others may be left out of the listing.
    pub fn owns(&self, key: &str) -> bool {
        self.ownership.owns(key)
    }
}

/// The objects to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListScope {
    /// All objects: the start-up sweep trusts no record.
    Everything,
    /// Objects that are not at rest.
    Active,
}

/// Result of a listing.
#[derive(Debug, Clone)]
pub struct ResourceList<O> {
    /// Objects to reconcile.
    pub objects: Vec<O>,
    /// Names of objects that exist and need no reconcile.
    pub resting: Vec<String>,
}

impl<O> From<Vec<O>> for ResourceList<O> {
    fn from(objects: Vec<O>) -> Self {
        Self { objects, resting: Vec::new() }
    }
}

impl<O> Default for ResourceList<O> {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}
