//! EC2 as data: per region what there is to launch with, and what was launched. No I/O, no clock: it is told the time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::catalog::{Catalog, REGIONS, is_well_formed};
use super::error::AwsError;
use super::fields::InstanceField;
use super::filter::Filters;
use super::instance::{Course, Instance};
use super::orders::Told;
use super::page::{Page, PageRequest};
use super::rng::SeededRng;
use super::settings::{Delays, Settings, StopWhilePending};
use super::tokens::Tokens;
use super::view::View;

/// Whether a request is meant, or only a rehearsal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// It is meant.
    Execute,
    /// Check everything, change nothing, say so.
    DryRun,
}

impl Intent {
    /// Stops a rehearsal here: everything before was checking, everything after is doing.
    pub fn proceed(self) -> Result<(), AwsError> {
        match self {
            Self::Execute => Ok(()),
            Self::DryRun => Err(AwsError::known("DryRunOperation")),
        }
    }
}

/// All of EC2.
#[derive(Debug)]
pub struct Ec2 {
    pub(super) rng: SeededRng,
    pub(super) delays: Delays,
    pub(super) stop_while_pending: StopWhilePending,
    pub(super) addresses: Addresses,
    next_sequence: u64,
    /// The instances that were launched or told something, until somebody has heard of it.
    pub(super) told: Vec<Told>,
    regions: BTreeMap<&'static str, Region>,
}

/// EC2 in one region.
#[derive(Debug)]
pub struct Region {
    /// Its name.
    pub name: &'static str,
    /// What there is to launch with.
    pub catalog: Catalog,
    pub(super) instances: BTreeMap<u64, Arc<Instance>>,
    pub(super) by_id: HashMap<String, u64>,
    pub(super) tokens: Tokens,
    pub(super) next_private: u32,
    /// When which terminated instance goes out of sight.
    pub(super) departures: BTreeSet<(DateTime<Utc>, u64)>,
}

/// Which instances a caller asks for.
#[derive(Debug, Clone, Default)]
pub struct InstanceQuery {
    /// These; all when empty.
    pub ids: Vec<String>,
    /// Of them, those that pass.
    pub filters: Filters<InstanceField>,
    /// Of them, this part.
    pub page: PageRequest,
}

impl Ec2 {
    /// EC2 before anything was launched.
    pub fn new(settings: &Settings) -> Self {
        Self {
            rng: SeededRng::new(settings.seed, "ec2"),
            delays: settings.delays,
            stop_while_pending: settings.stop_while_pending,
            addresses: Addresses::default(),
            next_sequence: 0,
            told: Vec::new(),
            regions: REGIONS.into_iter().map(|name| (name, Region::new(name))).collect(),
        }
    }

    /// A region as it is now.
    ///
    /// # Errors
    /// `AuthFailure` for one that does not exist: its credentials cannot be valid.
    pub fn region(&mut self, name: &str, now: DateTime<Utc>) -> Result<&mut Region, AwsError> {
        let remembered = self.delays.token_remembered;
        let region = self.regions.get_mut(name).ok_or_else(|| no_such_region(name))?;
        region.let_depart(now, remembered);
        Ok(region)
    }

    /// All regions, by name.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// The instance that runs at an outside address, and its region.
    pub fn at_address(&self, address: Ipv4Addr, now: DateTime<Utc>) -> Option<(&'static str, Arc<Instance>)> {
        self.regions.values().find_map(|region| {
            let instance = region.instances().find(|instance| instance.public_ip(now) == Some(address))?;
            Some((region.name, Arc::clone(instance)))
        })
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
            catalog: Catalog::of(name),
            instances: BTreeMap::new(),
            by_id: HashMap::new(),
            tokens: Tokens::default(),
            next_private: 10,
            departures: BTreeSet::new(),
        }
    }

    /// The instances a caller asks for, as it sees them. Cheap to take away: encoding happens outside the lock.
    ///
    /// # Errors
    /// Malformed ids before unknown ones; all unknown ones are named.
    pub fn select(
        &self,
        query: &InstanceQuery,
        view: &View,
        now: DateTime<Utc>,
    ) -> Result<Page<Arc<Instance>>, AwsError> {
        let page = query.page.cut(view.page);
        let mut selected = if query.ids.is_empty() {
            let listing = self
                .instances
                .range(page.from..)
                .filter(|(_, instance)| query.filters.pass(instance, now) && view.lists(instance, now));
            Page::collect(page, listing.map(|(sequence, instance)| (*sequence, Arc::clone(instance))))
        } else {
            let found = self.find_all(&query.ids, view, now)?;
            let passing = found.into_iter().filter(|instance| query.filters.pass(instance, now));
            // Ids and pages exclude each other, so what a fault cuts off here is simply missing.
            Page { next_token: None, ..Page::collect(page, passing.map(|instance| (instance.sequence, instance))) }
        };
        view.arrange(&mut selected.items);
        Ok(selected)
    }

    /// The instances with these ids, each once, in the order of launches.
    ///
    /// # Errors
    /// As [`Region::select`].
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

    /// One instance.
    pub fn find(&self, id: &str) -> Option<&Arc<Instance>> {
        self.by_id.get(id).and_then(|sequence| self.instances.get(sequence))
    }

    /// The instance at this place in the order of launches.
    pub fn at(&self, sequence: u64) -> Option<&Arc<Instance>> {
        self.instances.get(&sequence)
    }

    /// All instances, in the order of launches.
    pub fn instances(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.instances.values()
    }

    pub(super) fn insert(&mut self, instance: Instance) -> Arc<Instance> {
        let instance = Arc::new(instance);
        self.by_id.insert(instance.id.clone(), instance.sequence);
        self.instances.insert(instance.sequence, Arc::clone(&instance));
        instance
    }

    /// Changes an instance. Whoever holds the earlier one (to encode it) keeps it unchanged.
    pub(super) fn change(&mut self, sequence: u64, change: impl FnOnce(&mut Instance)) {
        if let Some(instance) = self.instances.get_mut(&sequence) {
            change(Arc::make_mut(instance));
        }
    }

    fn let_depart(&mut self, now: DateTime<Utc>, remembered: Duration) {
        while let Some(&(moment, sequence)) = self.departures.first().filter(|(moment, _)| *moment <= now) {
            self.departures.remove(&(moment, sequence));
            if let Some(instance) = self.instances.remove(&sequence) {
                self.by_id.remove(&instance.id);
                if let (Some(token), Course::Out { terminated_at, .. }) = (&instance.client_token, instance.course)
                    && self.tokens.is_last(token, |sequence| self.instances.contains_key(&sequence))
                {
                    self.tokens.forget_at(token, later(terminated_at, remembered));
                }
            }
        }
        self.tokens.forget_due(now);
    }
}

/// Outside addresses are loopback addresses, one per start, so that each instance can be listened on.
#[derive(Debug)]
pub(super) struct Addresses {
    next: u32,
}

/// 127.0.0.0/12 is left to everybody else on the machine.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([127, 16, 0, 1]);
const LAST_ADDRESS: u32 = u32::from_be_bytes([127, 255, 255, 254]);

impl Default for Addresses {
    fn default() -> Self {
        Self { next: FIRST_ADDRESS }
    }
}

impl Addresses {
    pub(super) fn take(&mut self) -> Ipv4Addr {
        // Network and broadcast look-alikes confuse people, not kernels; they are skipped for the people.
        while matches!(self.next & 0xff, 0 | 255) {
            self.next += 1;
        }
        let address = Ipv4Addr::from(self.next);
        // Fifteen million starts later the first ones are long over.
        self.next = if self.next >= LAST_ADDRESS { FIRST_ADDRESS } else { self.next + 1 };
        address
    }
}

pub(super) fn later(moment: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(by).ok().and_then(|by| moment.checked_add_signed(by)).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn no_such_region(name: &str) -> AwsError {
    AwsError::new("AuthFailure", format!("Credential should be scoped to a valid region, not '{name}'."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_and_avoid_the_odd_ones() {
        let mut addresses = Addresses::default();
        let taken: BTreeSet<Ipv4Addr> = (0..1000).map(|_| addresses.take()).collect();
        assert_eq!(taken.len(), 1000);
        assert!(taken.iter().all(|address| address.is_loopback() && !matches!(address.octets()[3], 0 | 255)));
    }

    #[test]
    fn a_region_nobody_knows_is_a_matter_of_credentials() {
        let mut ec2 = Ec2::new(&Settings::default());
        let error = ec2.region("eu-nowhere-9", DateTime::<Utc>::UNIX_EPOCH).expect_err("no such region");
        assert_eq!((error.code.as_ref(), error.status), ("AuthFailure", 401));
    }
}
