//! What a controller keeps reconciled, as its author describes it.

use std::future::Future;

use crate::controller::queue::WorkResult;
use crate::lifecycle::failure::CallFailure;

/// What a controller keeps reconciled.
///
/// ```
/// use lcm_sdk::controller::{Fetched, Listing, Reconcile, ListScope};
/// use lcm_sdk::controller::queue::WorkResult;
/// use lcm_sdk::CallFailure;
///
/// struct Greeter;
///
/// impl Reconcile for Greeter {
///     type Resource = String;
///
///     fn key<'a>(&self, name: &'a String) -> &'a str {
///         name
///     }
///
///     async fn list(&self, _: ListScope) -> Result<Listing<String>, CallFailure> {
///         Ok(Listing { resources: vec!["Ada".into(), "Grace".into()], resting: Vec::new() })
///     }
///
///     async fn fetch(&self, key: &str) -> Result<Fetched<String>, CallFailure> {
///         Ok(Fetched::Resource(key.into()))
///     }
///
///     async fn reconcile(&self, name: String) -> WorkResult {
///         println!("hello {name}");
///         WorkResult::success()
///     }
/// }
/// ```
pub trait Reconcile: Send + Sync + 'static {
    /// The resource.
    type Resource: Send + Sync + 'static;

    /// Its name, which is unique.
    fn key<'a>(&self, resource: &'a Self::Resource) -> &'a str;

    /// Lists resources. The scope is an argument: nobody has to remember which kind of listing is under way.
    fn list(&self, scope: ListScope) -> impl Future<Output = Result<Listing<Self::Resource>, CallFailure>> + Send;

    /// Reads one resource.
    fn fetch(&self, key: &str) -> impl Future<Output = Result<Fetched<Self::Resource>, CallFailure>> + Send;

    /// One pass over a resource. A panic is caught, and one that takes too long is dropped.
    fn reconcile(&self, resource: Self::Resource) -> impl Future<Output = WorkResult> + Send;

    /// Called with everything a listing gave, before the first of them is reconciled: the place to ask for all of
    /// them at once what each would ask for alone.
    fn prepare(&self, resources: &[Self::Resource]) -> impl Future<Output = ()> + Send {
        let _ = resources;
        async {}
    }

    /// Whether a resource that was told as changed is only as our own last write left it.
    fn is_echo(&self, resource: &Self::Resource) -> bool {
        let _ = resource;
        false
    }

    /// Called in every polling cycle, and as often where polling is disabled.
    fn on_cycle(&self) {}
}

/// Which resources to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListScope {
    /// Everything there is: the start-up sweep trusts no record.
    Everything,
    /// What is not at rest.
    Active,
}

/// What a listing gave.
#[derive(Debug, Clone, Default)]
pub struct Listing<R> {
    /// What is to be looked at.
    pub resources: Vec<R>,
    /// The names of those that exist and need no look.
    pub resting: Vec<String>,
}

/// What became of reading one resource.
#[derive(Debug, Clone)]
pub enum Fetched<R> {
    /// This is it.
    Resource(R),
    /// It does not exist any more.
    Gone,
}
