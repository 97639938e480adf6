//! Trust in a region: whether "EC2 shows none" was said by the account and the region that the worker's instance is in.
//!
//! Credentials of another account, or another default region, make every instance look absent. An absence is therefore
//! acted on only with proof of the place: see [`prove_absence`]. An instance that EC2 shows, in any state, needs no proof.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::reason::{Detail, Reason, ReasonCode};
use super::time::{self, Timestamp};
use super::worker::Worker;

/// Maximum age of a sighting that proves an account.
pub const SIGHTING_MAX_AGE: Duration = Duration::from_secs(60);

/// The identity behind the calls in a region. Both fields are `None` on a port that has no accounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Caller {
    /// Id of the account that the credentials belong to; `None` if it could not be determined.
    pub account_id: Option<String>,
    /// Fingerprint of the access key. It differs between two keys and reveals neither.
    pub key_fingerprint: Option<u64>,
}

impl Caller {
    /// The caller with an account's credentials.
    pub fn new(account_id: impl Into<String>) -> Self {
        Self { account_id: Some(account_id.into()), key_fingerprint: None }
    }

    /// Whether the calls are made in an account, known or not. A port without accounts has neither.
    pub const fn has_account(&self) -> bool {
        self.account_id.is_some() || self.key_fingerprint.is_some()
    }

    /// Sets the fingerprint of the access key.
    #[must_use]
    pub fn with_key_fingerprint(self, key_fingerprint: u64) -> Self {
        Self { key_fingerprint: Some(key_fingerprint), ..self }
    }
}

/// A recorded instance that EC2 showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// When EC2 was asked.
    pub at: Timestamp,
    /// The caller that it was shown to.
    pub caller: Caller,
}

/// Region and account in which a worker's instance was last found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFound {
    /// Name of the region.
    pub region: String,
    /// Id of the account that owns the instance, if EC2 reported it.
    pub account_id: Option<String>,
}

/// Facts about the place in which an instance was looked up: the evidence for an absence.
///
/// ```
/// use lcm_sdk::lifecycle::trust::{Caller, Place};
///
/// let place = Place::new(Caller::new("123456789012")).with_subnet_owner("123456789012");
/// assert!(place.proves_region(None, "2026-02-06T08:00:00Z".parse().unwrap()));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Place {
    /// The caller whose lookup showed no instance.
    pub caller: Caller,
    /// The latest sighting of a recorded instance of the region.
    pub sighting: Option<Sighting>,
    /// Owner of the region's configured subnet, if the subnet is visible.
    pub subnet_owner: Option<String>,
    /// Where this process last found the worker's instance, for a record that does not keep that.
    pub last_found: Option<LastFound>,
}

impl Place {
    /// A place of which only the caller is known.
    pub fn new(caller: Caller) -> Self {
        Self { caller, ..Self::default() }
    }

    /// Adds a recorded instance that the same caller found.
    #[must_use]
    pub fn with_sighting(self, at: Timestamp) -> Self {
        let sighting = Some(Sighting { at, caller: self.caller.clone() });
        Self { sighting, ..self }
    }

    /// Adds the owner of the configured subnet, which is visible.
    #[must_use]
    pub fn with_subnet_owner(self, account_id: impl Into<String>) -> Self {
        Self { subnet_owner: Some(account_id.into()), ..self }
    }

    /// Whether the account is proved for every record of the region: by a sighting, the expected account, or the subnet.
    pub fn proves_region(&self, expected_account: Option<&str>, now: Timestamp) -> bool {
        let account = self.caller.account_id.as_deref();
        let is_callers = |other: Option<&str>| account.is_some() && account == other;
        let is_fresh = |seen: &Sighting| time::age(seen.at, now) <= SIGHTING_MAX_AGE;
        let seen = self.sighting.as_ref().is_some_and(|seen| seen.caller == self.caller && is_fresh(seen));
        seen || is_callers(expected_account) || is_callers(self.subnet_owner.as_deref())
    }
}

/// Why an absence is not believed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doubt {
    /// Neither the record nor an earlier lookup names the worker's region.
    RegionUnknown,
    /// The instance was last found in another account.
    OtherAccount {
        /// Account in which it was found.
        found_in: String,
        /// Account of the caller.
        caller: String,
    },
    /// The configuration names another account for launches.
    UnexpectedAccount {
        /// Account that the configuration names.
        expected: String,
        /// Account of the caller, if it is known.
        caller: Option<String>,
    },
    /// Nothing proves that the caller's account is the one of the region's records.
    NotProved {
        /// Account of the caller, if it is known.
        caller: Option<String>,
    },
}

impl Doubt {
    /// The reason of a decision that waits for proof.
    pub fn reason(&self) -> Reason {
        match self {
            Self::RegionUnknown => ReasonCode::RegionUnknown.into(),
            Self::OtherAccount { .. } | Self::UnexpectedAccount { .. } | Self::NotProved { .. } => {
                Reason::new(ReasonCode::RegionNotTrusted).with(Detail::Text(self.to_string().into()))
            }
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RegionUnknown => f.write_str("the worker's region is not known"),
            Self::OtherAccount { found_in, caller } => {
                write!(f, "last found in account {found_in}, the credentials belong to {caller}")
            }
            Self::UnexpectedAccount { expected, caller: Some(caller) } => {
                write!(f, "account {expected} is configured, the credentials belong to {caller}")
            }
            Self::UnexpectedAccount { expected, caller: None } => {
                write!(f, "account {expected} is configured, the account of the credentials is not known")
            }
            Self::NotProved { caller: Some(caller) } => write!(f, "the credentials belong to account {caller}"),
            Self::NotProved { caller: None } => f.write_str("the account of the credentials is not known"),
        }
    }
}

/// Whether the absence of a worker's instance is proved by facts about the place. `expected_account` is the account that
/// the configuration names.
///
/// # Errors
/// The doubt that remains. An absence in doubt must not change the record.
///
/// # Rules
/// The region must be known: from the record, its launch, or the last time the instance was found. The caller must not
/// belong to another account than the one in which the instance was last found. Then one of these is enough:
/// - a recorded instance of the region was found with the same access key within [`SIGHTING_MAX_AGE`];
/// - the caller's account is the expected one, or the one in which the instance was last found;
/// - the region's configured subnet is visible and belongs to the caller's account.
///
/// ```
/// use lcm_sdk::lifecycle::trust::{Caller, Place, prove_absence};
/// use lcm_sdk::{Worker, WorkerStatus};
///
/// let mut worker = Worker::new("w-1", WorkerStatus::Running);
/// worker.aws_region = Some("us-east-1".into());
/// let (place, now) = (Place::new(Caller::new("210987654321")), "2026-02-06T08:00:00Z".parse().unwrap());
/// assert!(prove_absence(&worker, &place, Some("123456789012"), now).is_err());
/// assert!(prove_absence(&worker, &place, Some("210987654321"), now).is_ok());
/// ```
pub fn prove_absence(
    worker: &Worker,
    place: &Place,
    expected_account: Option<&str>,
    now: Timestamp,
) -> Result<(), Doubt> {
    if worker.known_region().is_none() && place.last_found.is_none() {
        return Err(Doubt::RegionUnknown);
    }
    let remembered = place.last_found.as_ref().and_then(|found| found.account_id.as_deref());
    let found_in = remembered.or(worker.notes.ec2_account_id.as_deref());
    match (found_in, place.caller.account_id.as_deref()) {
        (Some(found_in), Some(caller)) if found_in == caller => Ok(()),
        (Some(found_in), Some(caller)) => {
            Err(Doubt::OtherAccount { found_in: found_in.to_owned(), caller: caller.to_owned() })
        }
        (None, _) | (_, None) if place.proves_region(expected_account, now) => Ok(()),
        (None, caller) | (_, caller @ None) => Err(Doubt::NotProved { caller: caller.map(str::to_owned) }),
    }
}

/// Whether the caller may launch: `expected_account` is the account that the configuration names.
///
/// # Errors
/// [`Doubt::UnexpectedAccount`] if the caller's account is another one, or cannot be determined. A port that has no
/// accounts cannot be in the wrong one.
pub fn admit_launch(place: &Place, expected_account: Option<&str>) -> Result<(), Doubt> {
    let caller = place.caller.account_id.as_deref();
    match expected_account {
        Some(expected) if caller != Some(expected) && place.caller.has_account() => {
            Err(Doubt::UnexpectedAccount { expected: expected.to_owned(), caller: caller.map(str::to_owned) })
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether a launch that EC2 refuses, or for which it shows no AMI, is impossible. Another account refuses the subnet and
/// shows other AMIs. `expected_account` is the account that the configuration names.
///
/// # Errors
/// [`Doubt::NotProved`] if nothing proves the account of the region. A refusal in doubt must not fail the worker.
pub fn prove_refusal(place: &Place, expected_account: Option<&str>, now: Timestamp) -> Result<(), Doubt> {
    if !place.caller.has_account() || place.proves_region(expected_account, now) {
        Ok(())
    } else {
        Err(Doubt::NotProved { caller: place.caller.account_id.clone() })
    }
}
