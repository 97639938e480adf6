//! State of EC2: the catalog and the instances of each region. Every operation takes the current time.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::catalog::{Catalog, OPT_IN_REGIONS, REGIONS, RegionName, is_well_formed, region_named};
use super::change_feed::InstanceChange;
use super::disruption::CapacityLimit;
use super::error::AwsError;
use super::fields::InstanceField;
use super::filter::Filters;
use super::instance::{Instance, Lifecycle, StateCause};
use super::launch::Tokens;
use super::page::{Page, PageRequest};
use super::resources::{Resources, Volume};
use super::rng::SeededRng;
use super::settings::{Delays, Settings, StopWhilePending};
use super::view::View;

/// Whether a request is executed or only validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Validate the request, then execute it.
    Execute,
    /// Validate the request and return `DryRunOperation` instead of executing it.
    DryRun,
}

impl Intent {
    /// Separates validation from execution.
    ///
    /// # Errors
    /// `DryRunOperation` for a dry run.
    pub fn proceed(self) -> Result<(), AwsError> {
        match self {
            Self::Execute => Ok(()),
            Self::DryRun => Err(AwsError::from_code("DryRunOperation")),
        }
    }
}

/// Whether the account uses a region that is not on by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OptIn {
    In,
    Out,
}

/// State of EC2 in all regions.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Ec2 {
    pub(super) rng: SeededRng,
    pub(super) delays: Delays,
    pub(super) stop_while_pending: StopWhilePending,
    pub(super) addresses: Addresses,
    next_sequence: u64,
    /// Changes that are not published yet.
    #[serde(skip)]
    pub(super) changed: Vec<InstanceChange>,
    /// Interruptions and events by the time at which they are due, with the region and the instance.
    #[serde(deserialize_with = "due_in_known_regions")]
    pub(super) due: BTreeSet<Due>,
    /// Names of instance profiles that do not exist; IAM is not modeled, so that all others do.
    pub(super) missing_profiles: BTreeSet<String>,
    /// Accounts beside the default account.
    accounts: Vec<String>,
    #[serde(with = "by_name")]
    regions: BTreeMap<RegionName, Region>,
}

/// State of EC2 in one region.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Region {
    /// Region name, such as `us-east-1`.
    #[serde(deserialize_with = "super::catalog::known_region")]
    pub name: RegionName,
    /// Images, subnets and security groups.
    pub catalog: Catalog,
    pub(super) instances: BTreeMap<u64, Arc<Instance>>,
    #[serde(skip)]
    pub(super) by_id: HashMap<String, u64>,
    pub(super) tokens: Tokens,
    /// Resources that no launch creates, and their tags.
    pub resources: Resources,
    /// Limits on running instances.
    pub capacity: Vec<CapacityLimit>,
    /// Last assigned host number by subnet.
    pub(super) hosts: HashMap<String, u32>,
    /// Private addresses that a launch named.
    pub(super) named_addresses: BTreeSet<Ipv4Addr>,
    /// Terminated instances by the time at which they are removed.
    pub(super) expirations: BTreeSet<(DateTime<Utc>, u64)>,
    /// Instances that were removed, with the time of the removal; the oldest is dropped.
    gone: VecDeque<(DateTime<Utc>, Arc<Instance>)>,
}

/// Time, region and position of an instance to which something happens then.
type Due = (DateTime<Utc>, RegionName, u64);

/// Number of removed instances that a region remembers.
const MAX_GONE: usize = 256;

/// Regions in a snapshot: a list, because each knows its name.
mod by_name {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{BTreeMap, Region, RegionName};

    pub(super) fn serialize<S: Serializer>(all: &BTreeMap<RegionName, Region>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.values())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<RegionName, Region>, D::Error> {
        let regions = Vec::<Region>::deserialize(from)?.into_iter();
        Ok(regions.map(|region| (region.name, region.indexed())).collect())
    }
}

fn due_in_known_regions<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeSet<Due>, D::Error> {
    let all = <Vec<(DateTime<Utc>, String, u64)> as serde::Deserialize>::deserialize(from)?;
    let known = |(at, name, sequence): (DateTime<Utc>, String, u64)| {
        let region = region_named(&name);
        let region = region.ok_or_else(|| serde::de::Error::custom(format!("unknown region '{name}'")))?;
        Ok((at, region, sequence))
    };
    all.into_iter().map(known).collect()
}

/// Parameters of DescribeInstances.
#[derive(Debug, Clone, Default)]
pub struct InstanceQuery {
    /// Instance ids; empty selects all instances.
    pub ids: Vec<String>,
    /// Filters that the selected instances must match.
    pub filters: Filters<InstanceField>,
    /// Page size and start.
    pub page: PageRequest,
}

impl Ec2 {
    /// Creates all regions with their default catalogs and no instances.
    pub fn new(settings: &Settings) -> Self {
        let mut ec2 = Self {
            rng: SeededRng::new(settings.seed, "ec2"),
            delays: settings.delays,
            stop_while_pending: settings.stop_while_pending,
            addresses: Addresses::default(),
            next_sequence: 0,
            changed: Vec::new(),
            due: BTreeSet::new(),
            missing_profiles: BTreeSet::new(),
            accounts: Vec::new(),
            regions: REGIONS.into_iter().map(|name| (name, Region::new(name))).collect(),
        };
        settings.accounts.iter().for_each(|account| ec2.add_account(account.id()));
        ec2
    }

    /// Opts in to a region, or out of it. A region that is opted out of loses its instances.
    pub(super) fn opt(&mut self, name: &str, opt: OptIn) -> Result<(), AwsError> {
        let Some(known) = OPT_IN_REGIONS.into_iter().find(|known| *known == name) else {
            let message = format!("invalid region '{name}': expected {}", OPT_IN_REGIONS.join(", "));
            return Err(AwsError::new("InvalidParameterValue", message));
        };
        match opt {
            OptIn::Out => drop(self.regions.remove(known)),
            OptIn::In => {
                let accounts = self.accounts.clone();
                let region = self.regions.entry(known).or_insert_with(|| Region::new(known));
                accounts.iter().for_each(|account| region.catalog.add_account(known, account));
            }
        }
        Ok(())
    }

    /// Returns whether requests in a region are accepted.
    pub(crate) fn has_region(&self, name: &str) -> bool {
        self.regions.contains_key(name)
    }

    /// Adds the default network of an account to every region.
    pub(super) fn add_account(&mut self, account: &str) {
        self.accounts.push(account.to_owned());
        for region in self.regions.values_mut() {
            region.catalog.add_account(region.name, account);
        }
    }

    /// Returns a region after removing the instances and tokens that have expired.
    ///
    /// # Errors
    /// `AuthFailure` for an unknown region, because its credential scope is not valid.
    pub fn region(&mut self, name: &str, now: DateTime<Utc>) -> Result<&mut Region, AwsError> {
        let remembered = self.delays.token_lifetime;
        let region = self.regions.get_mut(name).ok_or_else(|| unknown_region(name))?;
        region.remove_expired(now, remembered);
        Ok(region)
    }

    /// Returns all regions, ordered by name.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// Returns the running instance with this public address, and its region.
    pub fn find_by_address(&self, address: Ipv4Addr, now: DateTime<Utc>) -> Option<(&'static str, Arc<Instance>)> {
        self.regions.values().find_map(|region| {
            let instance = region.instances().find(|instance| instance.public_ip(now) == Some(address))?;
            Some((region.name, Arc::clone(instance)))
        })
    }

    /// Returns a new id.
    pub(crate) fn new_id(&mut self, prefix: &str) -> String {
        self.rng.id(prefix)
    }

    /// Returns a new public address.
    pub(crate) fn new_address(&mut self) -> Ipv4Addr {
        self.addresses.allocate()
    }

    pub(super) fn next_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }
}

impl Region {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            catalog: Catalog::for_region(name),
            instances: BTreeMap::new(),
            by_id: HashMap::new(),
            tokens: Tokens::default(),
            resources: Resources::default(),
            capacity: Vec::new(),
            hosts: HashMap::new(),
            named_addresses: BTreeSet::new(),
            expirations: BTreeSet::new(),
            gone: VecDeque::new(),
        }
    }

    /// Builds the index of a region that was read from a snapshot.
    fn indexed(mut self) -> Self {
        self.by_id = self.instances.values().map(|instance| (instance.id.clone(), instance.sequence)).collect();
        self
    }

    /// Returns the selected instances, subject to the faults in `view`. Clones of `Arc` are returned so that encoding
    /// happens outside the lock.
    ///
    /// # Errors
    /// A malformed id; otherwise all unknown ids in one error.
    pub fn select(
        &self,
        query: &InstanceQuery,
        view: &View,
        now: DateTime<Utc>,
    ) -> Result<Page<Arc<Instance>>, AwsError> {
        self.select_if(query, view, now, |_| true)
    }

    /// Returns the selected instances that pass a further test.
    ///
    /// # Errors
    /// The errors of [`Region::select`].
    pub fn select_if(
        &self,
        query: &InstanceQuery,
        view: &View,
        now: DateTime<Utc>,
        test: impl Fn(&Instance) -> bool,
    ) -> Result<Page<Arc<Instance>>, AwsError> {
        let page = query.page.cut(view.page);
        let passes = |instance: &Instance| query.filters.match_all(instance, now) && test(instance);
        let mut selected = if query.ids.is_empty() {
            let listing =
                self.instances.range(page.from..).filter(|(_, instance)| passes(instance) && view.lists(instance, now));
            Page::collect(page, listing.map(|(sequence, instance)| (*sequence, Arc::clone(instance))))
        } else {
            let found = self.find_all(&query.ids, view, now)?;
            let passing = found.into_iter().filter(|instance| passes(instance));
            // EC2 does not page a request by ids, so instances cut off by a fault have no next token.
            Page { next_token: None, ..Page::collect(page, passing.map(|instance| (instance.sequence, instance))) }
        };
        view.shuffle_items(&mut selected.items);
        Ok(selected)
    }

    /// Returns the instances with these ids, without duplicates, in launch order.
    ///
    /// # Errors
    /// The errors of [`Region::select`].
    pub fn find_all(&self, ids: &[String], view: &View, now: DateTime<Utc>) -> Result<Vec<Arc<Instance>>, AwsError> {
        if let Some(malformed) = ids.iter().find(|id| !is_well_formed(id, "i")) {
            return Err(AwsError::malformed_instance(malformed));
        }
        let mut found = BTreeMap::new();
        let mut unknown = Vec::new();
        for id in ids {
            match self.find(id).filter(|instance| view.finds(instance, now)) {
                Some(instance) => drop(found.insert(instance.sequence, Arc::clone(instance))),
                None if !unknown.contains(&id.as_str()) => unknown.push(id),
                None => {}
            }
        }
        if unknown.is_empty() { Ok(found.into_values().collect()) } else { Err(AwsError::unknown_instances(&unknown)) }
    }

    /// Returns the instance with this id.
    pub fn find(&self, id: &str) -> Option<&Arc<Instance>> {
        self.by_id.get(id).and_then(|sequence| self.instances.get(sequence))
    }

    /// Returns the instance at this position in launch order.
    pub fn find_by_sequence(&self, sequence: u64) -> Option<&Arc<Instance>> {
        self.instances.get(&sequence)
    }

    /// Returns the instances that are no longer described, with the time until which they were.
    pub(crate) fn gone(&self) -> impl Iterator<Item = &(DateTime<Utc>, Arc<Instance>)> {
        self.gone.iter()
    }

    /// Returns the instance that was removed last, with the time.
    pub(crate) fn newest_gone(&self) -> Option<(DateTime<Utc>, u64)> {
        self.gone.back().map(|(at, instance)| (*at, instance.sequence))
    }

    /// Returns all instances, in launch order.
    pub fn instances(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.instances.values()
    }

    pub(super) fn insert(&mut self, instance: Instance) -> Arc<Instance> {
        let instance = Arc::new(instance);
        self.by_id.insert(instance.id.clone(), instance.sequence);
        self.instances.insert(instance.sequence, Arc::clone(&instance));
        instance
    }

    /// Changes an instance. Clones of the `Arc` that are being encoded keep the previous value.
    pub(super) fn change(&mut self, sequence: u64, change: impl FnOnce(&mut Instance)) {
        if let Some(instance) = self.instances.get_mut(&sequence) {
            change(Arc::make_mut(instance));
        }
    }

    /// Replaces an instance by a changed one.
    pub(crate) fn replace(&mut self, changed: Instance) {
        self.change(changed.sequence, |instance| *instance = changed);
    }

    /// Terminates an instance. Volumes that are not deleted with it become volumes of their own.
    pub(super) fn terminate(
        &mut self,
        sequence: u64,
        now: DateTime<Utc>,
        terminated_at: DateTime<Utc>,
        cause: StateCause,
    ) {
        self.change(sequence, |instance| instance.terminate(now, terminated_at, cause));
        let Some(instance) = self.instances.get(&sequence) else { return };
        let kept = instance.volume_ids().zip(&instance.options.volumes).filter(|(_, spec)| !spec.delete_on_termination);
        let volumes: Vec<Volume> = kept
            .map(|(id, spec)| Volume {
                id: id.to_owned(),
                spec: spec.clone(),
                availability_zone: instance.availability_zone.to_string(),
                created_at: instance.created_at,
                instance_id: None,
                client_token: None,
                owner: Arc::clone(&instance.owner),
            })
            .collect();
        self.resources.volumes.extend(volumes);
    }

    fn remove_expired(&mut self, now: DateTime<Utc>, remembered: Duration) {
        while let Some(&(expires_at, sequence)) = self.expirations.first().filter(|(expires_at, _)| *expires_at <= now)
        {
            self.expirations.remove(&(expires_at, sequence));
            if let Some(instance) = self.instances.remove(&sequence) {
                self.by_id.remove(&instance.id);
                for id in instance.volume_ids().chain(instance.interface_ids()) {
                    // A volume that outlives its instance keeps its tags.
                    if !self.resources.volumes.iter().any(|volume| volume.id == id) {
                        self.resources.tags.remove(id);
                    }
                }
                if let (Some(token), Lifecycle::Terminating { terminated_at, .. }) =
                    (instance.token_key(), instance.lifecycle)
                    && self.tokens.is_unused(&token, |sequence| self.instances.contains_key(&sequence))
                {
                    self.tokens.expire_at(token, later(terminated_at, remembered));
                }
                if self.gone.len() == MAX_GONE {
                    self.gone.pop_front();
                }
                self.gone.push_back((expires_at, instance));
            }
        }
        self.tokens.remove_expired(now);
    }
}

/// Allocates public addresses. They are loopback addresses, one per start, so that a server can listen on each.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Addresses {
    next: u32,
}

/// First address after 127.0.0.0/12, which is left to other software on the machine.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([127, 16, 0, 1]);
const LAST_ADDRESS: u32 = u32::from_be_bytes([127, 255, 255, 254]);

impl Default for Addresses {
    fn default() -> Self {
        Self { next: FIRST_ADDRESS }
    }
}

impl Addresses {
    pub(super) fn allocate(&mut self) -> Ipv4Addr {
        // Addresses that look like network or broadcast addresses are skipped for readability.
        while matches!(self.next & 0xff, 0 | 255) {
            self.next += 1;
        }
        let address = Ipv4Addr::from(self.next);
        // Reuse starts after 15 million allocations.
        self.next = if self.next >= LAST_ADDRESS { FIRST_ADDRESS } else { self.next + 1 };
        address
    }
}

pub(super) fn later(moment: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(by).ok().and_then(|by| moment.checked_add_signed(by)).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn unknown_region(name: &str) -> AwsError {
    AwsError::new("AuthFailure", format!("Credential should be scoped to a valid region, not '{name}'."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_loopback_addresses() {
        let mut addresses = Addresses::default();
        let taken: BTreeSet<Ipv4Addr> = (0..1000).map(|_| addresses.allocate()).collect();
        assert_eq!(taken.len(), 1000);
        assert!(taken.iter().all(|address| address.is_loopback() && !matches!(address.octets()[3], 0 | 255)));
    }

    #[test]
    fn unknown_region_is_an_auth_failure() {
        let mut ec2 = Ec2::new(&Settings::default());
        let error = ec2.region("eu-nowhere-9", DateTime::<Utc>::UNIX_EPOCH).expect_err("no such region");
        assert_eq!((error.code.as_ref(), error.status), ("AuthFailure", 401));
    }
}
