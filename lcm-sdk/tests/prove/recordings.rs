//! Recordings as a gate: this version decides every recorded reconcile of the scripts again the same, and a controller
//! with a defect differently, if the defect changes a decision.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use lcm_sdk::history::{
    HistoryEncoder, HistoryLimits, HistoryReader, HistoryWriter, RecordedReconcile, ReplayPolicy, replay_paths,
};
use lcm_sdk::lifecycle::trust::Place;
use lcm_sdk::lifecycle::{Change, LicenseReport, SessionPhase};
use lcm_sdk::{
    Decision, DesiredStatus, Ec2State, Lookup, Observation, Policy, RegionConfig, Timestamp, Worker, WorkerStatus,
    decide,
};

use super::broken::Broken;
use super::schedule;
use super::summary::Summary;
use super::world::{Setup, UNKNOWN_REGION};
use super::{jobs, scenarios};

/// Number of random days that are recorded besides the scripts, for faults that no script needs.
const DAYS: u64 = 6;

/// Number of decisions of a defect that are replayed.
const ENOUGH: usize = 5;

/// The writer that recorded controllers share.
static WRITER: OnceLock<HistoryWriter> = OnceLock::new();

/// The writer of a controller whose history is recorded.
pub(crate) fn writer() -> Option<HistoryWriter> {
    WRITER.get().cloned()
}

/// The input of a decision.
struct Input {
    worker: Worker,
    seen: Observation,
    policy: Policy,
    at: Timestamp,
}

/// How a defect shows in a decision about an input.
enum Mistake {
    /// It decides about another input.
    Input(fn(&mut Input)),
    /// It leaves something out of the decision, or changes it.
    Decision(fn(&mut Decision, &Policy)),
    /// It decides the same, for this reason.
    None(&'static str),
}

impl Broken {
    /// How the defect shows in a decision.
    fn mistake(self) -> Mistake {
        match self {
            Self::GcTrustsErrors => Mistake::Input(|input| {
                if input.seen.instance.failure().is_some() {
                    (input.seen.instance, input.seen.place) = (Lookup::Absent, proved(input.at));
                }
            }),
            Self::DrainIsStop => Mistake::Input(|input| {
                if input.worker.status == WorkerStatus::Draining {
                    input.worker.status = WorkerStatus::Stopping;
                    input.worker.notes.drain_started_at = None;
                }
            }),
            Self::AbsentIsGone => Mistake::Input(|input| input.policy.consistency_window = Duration::ZERO),
            Self::AbsenceNeedsNoProof | Self::OneForeignInstanceProves => Mistake::Input(|input| {
                if input.seen.place.found().is_some() {
                    input.seen.place = proved(input.at);
                }
            }),
            Self::DefaultRegionIsBelieved => Mistake::Input(|input| {
                if input.worker.known_region().is_none() {
                    input.worker.aws_region.clone_from(&input.policy.regions.default_region);
                }
            }),
            Self::FailedIsForgotten => Mistake::Input(|input| {
                if input.worker.status == WorkerStatus::Failed && !input.seen.tagged.is_not_requested() {
                    input.seen.tagged = Lookup::Found(Vec::new());
                }
            }),
            Self::DrainOutlivesDemand => Mistake::Input(|input| {
                if input.worker.status == WorkerStatus::Draining
                    && input.worker.desired_status == Some(DesiredStatus::Running)
                {
                    input.worker.desired_status = Some(DesiredStatus::Stopped);
                }
            }),
            Self::NamelessIsGone => Mistake::Input(|input| {
                if input.worker.ec2_instance_id.is_none() && !input.seen.tagged.is_not_requested() {
                    input.seen.tagged = Lookup::Found(Vec::new());
                }
            }),
            Self::StuckSessionBlocks => Mistake::Input(|input| input.worker.notes.drain_tries = 0),
            Self::PendingIsAtRest => Mistake::Input(|input| {
                if let (WorkerStatus::Stopped, Lookup::Found(instance)) =
                    (input.worker.status, &mut input.seen.instance)
                    && instance.state == Ec2State::Pending
                {
                    instance.state = Ec2State::Stopped;
                }
            }),
            Self::NoSettleTime => Mistake::Input(|input| input.policy.drain_settle = Duration::ZERO),
            Self::RegionIsAssumed => Mistake::Input(|input| {
                let regions = std::mem::take(&mut input.policy.regions);
                input.policy.regions = regions.with_region(UNKNOWN_REGION, RegionConfig::new("subnet-1", ["sg-1"]));
            }),
            Self::ErrorIsNoTemplate => {
                Mistake::None("no recording reaches it: the metrics loop reads the template before the launch does")
            }
            Self::WaitingSessionsForgotten => Mistake::Input(|input| {
                let is_up = input.seen.instance.found().is_some_and(|instance| instance.state == Ec2State::Running);
                if let (false, Lookup::Found(sessions)) = (is_up, &mut input.seen.sessions) {
                    sessions.retain(|session| session.state.phase() != SessionPhase::Waiting);
                }
            }),
            Self::LicenseAttemptNotRecorded => Mistake::Decision(|decision, _| {
                if let Some(changes) = &mut decision.changes {
                    changes.license_attempt = None;
                }
            }),
            Self::LaunchTimeIsEarly => Mistake::Decision(|decision, policy| {
                if let Some(changes) = &mut decision.changes
                    && changes.launch_plan != Change::Keep
                {
                    changes.launched_at = changes.launched_at.map(|at| at - policy.consistency_window);
                }
            }),
            Self::LicenseNeverFails => Mistake::Decision(|decision, _| {
                if let Some(changes) = &mut decision.changes
                    && changes.license_report == Some(LicenseReport::FailRegistration)
                {
                    changes.license_report = None;
                }
            }),
            Self::LicenseWaitForgotten => Mistake::Decision(|decision, _| {
                if let Some(changes) = &mut decision.changes {
                    changes.license_wait = None;
                }
            }),
            Self::NoClientToken => Mistake::None("the call sends another token than the decision names"),
            Self::ImagesOfAnyone => Mistake::None("EC2 is asked for other images; the decision about them is the same"),
            Self::LastAttemptCounts | Self::ExpiredIsRefused | Self::WithdrawnImageIsRefused => {
                Mistake::None("it misreads the result of an effect, which follows the decision")
            }
            Self::AddressIsRemembered => Mistake::None("the call goes to another address than the decision means"),
            Self::RepeatsAtOnce => Mistake::None("it repeats the write that follows the decision"),
            Self::EventsInTheWay => Mistake::None("it waits after the decision"),
            Self::NoLease | Self::NoFencing | Self::LeaseStandsStill | Self::KeyOfTheService | Self::HeldShardIsWon => {
                Mistake::None("the lead is no part of a decision: a controller decides that should not")
            }
            Self::WatchGap | Self::OneQueue => Mistake::None("it decides late, and then the same"),
            Self::DiscoveryFailsOpen
            | Self::ForeignImported
            | Self::NoDiscoveryWithoutFilter
            | Self::NoIntervalFloor => {
                Mistake::None("discovery is recorded by its records, not as decisions about a worker")
            }
            Self::GarbageIsUnmanaged => Mistake::None("the record is not decided about at all"),
        }
    }
}

fn proved(at: Timestamp) -> Lookup<Place> {
    Lookup::Found(Place::default().with_sighting(at))
}

/// A directory that is deleted at the end of the claim.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Records all scripts and some days, decides them again, and looks for every defect in them.
pub(crate) fn recordings() -> Summary {
    let directory = Directory(std::env::temp_dir().join(format!("lcm-prove-recordings-{}", std::process::id())));
    let mut limits = HistoryLimits::default();
    limits.sample = 1;
    let recording = directory.0.join("recording");
    let created = HistoryWriter::new(&recording, limits).expect("a directory");
    let writer = WRITER.get_or_init(|| created);

    let scripts: Vec<_> = scenarios::all().collect();
    let mut summary = jobs::run_all(&scripts, |script, summary| {
        summary.histories += 1;
        drop(script.record());
        flush(writer);
    });
    let days: Vec<u64> = (0..DAYS).collect();
    summary.merge(jobs::run_all(&days, |seed, summary| {
        summary.histories += 1;
        drop(schedule::run_day(Setup { is_recorded: true, ..schedule::setup_for_day(*seed) }));
        flush(writer);
    }));

    let replayed = replay_paths(&[&recording], &ReplayPolicy::AsRecorded).expect("readable");
    if !replayed.is_same() || replayed.decisions < 1_000 {
        let first = replayed.differences.first().map(ToString::to_string).unwrap_or_default();
        let counts = format!("{} decisions, {} differ, {:?}", replayed.decisions, replayed.changed, replayed.undecided);
        summary.violations.push(format!("this version decides its own recording differently: {counts}: {first}"));
    }
    summary.notes.push(format!("{} recorded decisions are the same again", replayed.decisions));

    let recorded: Result<Vec<_>, _> = HistoryReader::open(&recording).expect("a recording").collect();
    let recorded = recorded.expect("readable");
    let found = jobs::run_all(Broken::ALL, |broken, summary| {
        let wrong: Box<dyn Fn(&RecordedReconcile) -> Decision> = match broken.mistake() {
            Mistake::None(why) => {
                summary.notes.push(format!("{}: no decision differs: {why}", broken.name()));
                return;
            }
            Mistake::Input(change) => Box::new(move |recorded: &RecordedReconcile| {
                let mut input = Input {
                    worker: Worker::clone(&recorded.worker),
                    seen: recorded.seen.clone(),
                    policy: Policy::clone(&recorded.policy),
                    at: recorded.at,
                };
                change(&mut input);
                decide(&input.worker, &input.seen, &input.policy, input.at)
            }),
            Mistake::Decision(change) => Box::new(move |recorded: &RecordedReconcile| {
                let mut decision = recorded.decide(&recorded.policy);
                change(&mut decision, &recorded.policy);
                decision
            }),
        };
        let file = directory.0.join(format!("{broken:?}.ndjson"));
        let differing = write_mistakes(&file, &recorded, wrong);
        let replayed = replay_paths(&[&file], &ReplayPolicy::AsRecorded).expect("readable");
        match replayed.differences.first() {
            Some(first) if replayed.changed == differing as u64 => {
                summary.notes.push(format!("{}: told by {first}", broken.name()));
            }
            _ => summary.violations.push(format!(
                "{}: {differing} decisions of it differ, and the replay tells {}",
                broken.name(),
                replayed.changed
            )),
        }
    });
    summary.merge(found);
    summary
}

/// Writes a recording with the decisions of a defect, until enough of them differ. Returns their number.
fn write_mistakes(
    file: &Path,
    recorded: &[RecordedReconcile],
    wrong: impl Fn(&RecordedReconcile) -> Decision,
) -> usize {
    let (mut encoder, mut lines) = (HistoryEncoder::default(), Vec::new());
    let (mut differing, begin) = (0, recorded.first().map(|recorded| recorded.at).unwrap_or_default());
    encoder.header(begin, &mut lines).expect("encodes");
    for recorded in recorded.iter().filter(|recorded| recorded.operation.is_none()) {
        let decision = wrong(recorded);
        let mut line = recorded.clone();
        line.decision = (&decision).into();
        encoder.reconcile(&line, &mut lines).expect("encodes");
        // The wording of a reason is no difference.
        line.decision.sentence.clone_from(&recorded.decision.sentence);
        differing += usize::from(line.decision != recorded.decision);
        if differing == ENOUGH {
            break;
        }
    }
    std::fs::write(file, lines).expect("written");
    differing
}

/// Waits until the reconciles of a history are in the file.
fn flush(writer: &HistoryWriter) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    assert!(runtime.block_on(writer.flush(Duration::from_secs(60))), "the recording cannot be written");
}
