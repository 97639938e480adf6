//! Two controller processes: a leader and a standby.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_cloud::etcd::{Fault, KeyRange, Range, Record};
use lcm_sdk::controller::ElectionConfig;

use crate::fixture::Fixture;

struct Controller {
    identity: String,
    process: Child,
}

pub(crate) struct ControllerPair {
    fixture: Arc<Fixture>,
    logs: PathBuf,
    running: Vec<Controller>,
    started: usize,
}

impl ControllerPair {
    pub(crate) fn start(fixture: &Arc<Fixture>) -> Self {
        let logs = std::env::temp_dir().join(format!("lcm-kills-{}", std::process::id()));
        std::fs::create_dir_all(&logs).expect("a directory");
        let mut pair = Self { fixture: Arc::clone(fixture), logs, running: Vec::new(), started: 0 };
        pair.start_another();
        pair.start_another();
        pair
    }

    pub(crate) fn start_another(&mut self) {
        self.started += 1;
        let identity = format!("c-{}", self.started);
        let log = File::create(self.logs.join(&identity)).expect("a file");
        let process = Command::new(env!("CARGO_BIN_EXE_worker-controller-under-test"))
            .env_clear()
            .envs(self.fixture.environment())
            .env("LCM_INSTANCE_ID", &identity)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("started");
        self.running.push(Controller { identity, process });
    }

    /// The leader key in etcd.
    fn leader_key(&self) -> Option<Arc<Record>> {
        let range = Range::new(KeyRange::One(ElectionConfig::WORKER_CONTROLLER.into()));
        self.fixture.cloud.etcd().range(&range).expect("a valid range").records.pop()
    }

    /// Waits for a leader and returns its identity.
    pub(crate) fn leader(&mut self, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        loop {
            self.assert_alive();
            let holder = self.leader_key().map(|key| String::from_utf8_lossy(&key.value).into_owned());
            if let Some(holder) = holder.filter(|holder| self.running.iter().any(|it| it.identity == *holder)) {
                return holder;
            }
            assert!(Instant::now() < deadline, "no leader:\n{}", self.log_tail());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills a controller. Its lease is not released.
    pub(crate) fn kill(&mut self, identity: &str) {
        let index = self.running.iter().position(|it| it.identity == identity).expect("a running controller");
        let mut killed = self.running.remove(index);
        killed.process.kill().expect("a child process");
        killed.process.wait().expect("a child process");
        drop(std::fs::remove_file(self.logs.join(identity)));
    }

    /// Expires the lease of a killed controller.
    pub(crate) fn expire_lease(&self, identity: &str) {
        if let Some(key) = self.leader_key().filter(|key| key.value == identity.as_bytes()) {
            self.fixture.cloud.etcd().inject(Fault::LeaseLost(Some(key.lease)));
        }
    }

    /// Fails if a controller has ended by itself.
    pub(crate) fn assert_alive(&mut self) {
        for controller in &mut self.running {
            let ended = controller.process.try_wait().expect("a child process");
            assert!(ended.is_none(), "{} ended by itself: {ended:?}, see {}", controller.identity, self.logs.display());
        }
    }

    /// The last log lines of the running controllers.
    pub(crate) fn log_tail(&self) -> String {
        let tail = |controller: &Controller| {
            let log = std::fs::read_to_string(self.logs.join(&controller.identity)).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(30).collect();
            let lines: Vec<_> = lines.into_iter().rev().collect();
            format!("{}:\n{}", controller.identity, lines.join("\n"))
        };
        self.running.iter().map(tail).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for ControllerPair {
    fn drop(&mut self) {
        for controller in &mut self.running {
            drop(controller.process.kill());
            drop(controller.process.wait());
        }
        if !std::thread::panicking() {
            drop(std::fs::remove_dir_all(&self.logs));
        }
    }
}
