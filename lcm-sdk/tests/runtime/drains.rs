//! Bad days of drains: whatever fails, no session that somebody uses is lost.

use lcm_sdk::adapters::memory::Fault;
use lcm_sdk::ports::Clock as _;
use lcm_sdk::{CallFailure, DesiredStatus, Ec2State, FailureKind, WorkerStatus};

use super::bench::{HERE, worker_id};
use super::simulation::{Day, Dice};

const WORKERS: u8 = 3;

struct Drains {
    day: Day,
    dice: Dice,
    /// Sessions in use, and on which worker.
    used: Vec<(String, u8)>,
    /// Sessions that nobody has begun.
    scheduled: Vec<String>,
    sessions: usize,
}

impl Drains {
    fn happen(&mut self) {
        let number = u8::try_from(self.dice.roll(WORKERS.into())).expect("few") + 1;
        let bench = &self.day.bench;
        let (control_plane, worker, now) = (&bench.control_plane, bench.look(number), bench.clock.now());
        let failure = |kind| Fault::Fail(CallFailure::new(kind, "a bad day"));
        let happened = match (self.dice.roll(9), worker.status) {
            (0 | 1, WorkerStatus::Running) => {
                self.sessions += 1;
                let id = format!("s-{}", self.sessions);
                let state = if self.dice.roll(2) == 0 { "running" } else { "scheduled" };
                bench.session(&id, state, number);
                match state {
                    "running" => self.used.push((id.clone(), number)),
                    _ => self.scheduled.push(id.clone()),
                }
                format!("{id} is {state} on {number}")
            }
            (2 | 3, WorkerStatus::Running) => {
                control_plane.edit(&worker_id(number), |worker| {
                    worker.status = WorkerStatus::Draining;
                    worker.desired_status = Some(DesiredStatus::Stopped);
                    worker.notes.drain_started_at = Some(now);
                });
                format!("{number} is to drain")
            }
            (0 | 1, WorkerStatus::Draining) => {
                control_plane.edit(&worker_id(number), |worker| {
                    worker.status = WorkerStatus::Running;
                    worker.desired_status = Some(DesiredStatus::Running);
                    worker.notes.drain_started_at = None;
                });
                format!("the drain of {number} is called off")
            }
            (2 | 3, WorkerStatus::Stopped) => {
                control_plane.edit(&worker_id(number), |worker| worker.desired_status = Some(DesiredStatus::Running));
                format!("{number} is wanted again")
            }
            (4, _) => {
                self.day.crash();
                "the controller crashes and comes back".to_owned()
            }
            (5, _) => {
                bench.control_plane.plan("sessions", failure(FailureKind::Unclear));
                bench.control_plane.plan("move_session", failure(FailureKind::Throttled));
                "sessions cannot be asked about".to_owned()
            }
            (6, _) => {
                bench.control_plane.plan("write", Fault::LoseAnswer);
                "the answer to a write is lost".to_owned()
            }
            (7, _) if !self.used.is_empty() => {
                let (id, on) = self.used.remove(0);
                bench.session(&id, "stopped", on);
                format!("{id} is over")
            }
            (_, status) => format!("{number} is {status}"),
        };
        self.day.tell(&happened);
    }

    fn check(&self) {
        let bench = &self.day.bench;
        for (id, number) in &self.used {
            assert_eq!(bench.state_of_session(id), "running", "{id}\n{}", self.day.told());
            assert_eq!(bench.ec2_state(HERE, *number), Ec2State::Running, "{id} on {number}\n{}", self.day.told());
        }
        for id in &self.scheduled {
            let state = bench.state_of_session(id);
            assert!(["scheduled", "pending"].contains(&state.as_str()), "{id} is {state}\n{}", self.day.told());
        }
    }
}

async fn a_day(seed: u64) {
    let day = Day::of(seed, |bench| {
        for number in 1..=WORKERS {
            bench.worker(number, WorkerStatus::Running, Ec2State::Running);
            let running = Some(DesiredStatus::Running);
            bench.control_plane.edit(&worker_id(number), |worker| {
                worker.desired_status = running;
                // A server that pauses idle workers by itself looks at activity, not at sessions.
                worker.is_idle_detection_enabled = false;
            });
        }
    });
    let mut drains = Drains { day, dice: Dice::new(seed), used: Vec::new(), scheduled: Vec::new(), sessions: 0 };
    for _ in 0..60 {
        drains.happen();
        for _ in 0..=drains.dice.roll(20) {
            drains.day.live(1).await;
            drains.check();
        }
    }
    drains.day.crash();
}

#[tokio::test(start_paused = true)]
async fn no_session_is_lost_on_a_bad_day_of_drains() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let (first, days) = (number("LCM_FIRST_DAY").unwrap_or(0), number("LCM_DAYS").unwrap_or(10));
    for day in first..first + days {
        a_day(day).await;
    }
}
