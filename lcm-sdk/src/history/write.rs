//! Writes a history beside the reconciles.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use super::line::{HistoryEncoder, RecordedReconcile};
use super::read::{EXTENSION, files_in};
use crate::lifecycle::time::Timestamp;

/// Maximum number of reconciles that wait to be written, a few megabytes.
const CAPACITY: usize = 4_096;

/// Parts into which the space of a history is divided: the oldest is deleted as a whole.
const PARTS: u64 = 8;

/// Longest time between two checks of the limits.
const CHECK: Duration = Duration::from_secs(10);

/// Part of the space after which a writer checks the limits, at any time: others may have come.
const CHECK_PARTS: u64 = 64;

/// Time without writes after the disk refused one.
const PAUSE: Duration = Duration::from_secs(10);

/// Size of the buffer of a file.
const BUFFER: usize = 1 << 16;

/// Bounds of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryLimits {
    /// Maximum size of all files of the directory together, in bytes.
    pub max_bytes: u64,
    /// Maximum age of a file. Older ones are deleted.
    pub max_age: Duration,
    /// One in this many reconciles that change nothing is written; 0 for none.
    pub sample: u64,
}

impl HistoryLimits {
    /// Writes one in this many reconciles that change nothing; 0 for none.
    #[must_use]
    pub const fn with_sample(self, sample: u64) -> Self {
        Self { sample, ..self }
    }
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { max_bytes: 256 << 20, max_age: Duration::from_secs(7 * 24 * 3600), sample: 100 }
    }
}

/// Writes the reconciles of a process to files of their own in a directory. Clones share one thread and its queue.
///
/// # Guarantees
/// No call waits for the disk. A reconcile that finds the queue full, or whose write fails, is counted as
/// [lost](Self::lost) and logged. All others are in the file once [`flush`](Self::flush) returns true or the last clone
/// is dropped. The files are readable by their owner only. The limits hold for all writers of a directory together; none
/// deletes a file that another one still writes, which is locked.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::history::{HistoryLimits, HistoryReader, HistoryWriter, RecordedReconcile};
/// use lcm_sdk::{Observation, Policy, Worker, WorkerStatus, decide};
///
/// let directory = std::env::temp_dir().join(format!("lcm-history-{}", std::process::id()));
/// let writer = HistoryWriter::new(&directory, HistoryLimits::default())?;
/// let (worker, seen) = (Worker::new("w-1", WorkerStatus::Stopped), Observation::default());
/// let (policy, now) = (Arc::new(Policy::default()), "2026-02-06T08:00:00Z".parse().unwrap());
/// let decision = decide(&worker, &seen, &policy, now);
/// writer.write(RecordedReconcile::new(&worker, &seen, policy, now, &decision, &[]));
/// drop(writer);
///
/// assert_eq!(HistoryReader::open(&directory).unwrap().count(), 1);
/// # std::fs::remove_dir_all(directory)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct HistoryWriter(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    sender: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    directory: PathBuf,
    lost: Arc<AtomicU64>,
    routine: AtomicU64,
    sample: u64,
    /// The process that has the thread. A forked one has the queue without it.
    process: u32,
}

enum Message {
    Reconcile(Box<RecordedReconcile>),
    Flush(oneshot::Sender<()>),
}

impl HistoryWriter {
    /// Creates the directory and starts the thread. The first file begins with the first reconcile.
    ///
    /// # Errors
    /// If the directory or the thread cannot be created.
    pub fn new(directory: &Path, limits: HistoryLimits) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let lost = Arc::new(AtomicU64::new(0));
        let mut files = Files::new(directory.to_owned(), limits);
        let (sender, receiver) = sync_channel(CAPACITY);
        let run = {
            let lost = Arc::clone(&lost);
            move || run(&receiver, &mut files, &lost)
        };
        let thread = std::thread::Builder::new().name("lcm-history".to_owned()).spawn(run)?;
        Ok(Self(Arc::new(Queue {
            sender: Some(sender),
            thread: Some(thread),
            directory: directory.to_owned(),
            lost,
            routine: AtomicU64::new(0),
            sample: limits.sample,
            process: std::process::id(),
        })))
    }

    /// The directory of the files.
    pub fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// Queues a reconcile.
    pub fn write(&self, reconcile: RecordedReconcile) {
        let Some(sender) = &self.0.sender else { return };
        match sender.try_send(Message::Reconcile(Box::new(reconcile))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.0.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether a reconcile that changed nothing is written. Counts it.
    pub fn takes_sample(&self) -> bool {
        let Queue { routine, sample, .. } = &*self.0;
        *sample > 0 && routine.fetch_add(1, Ordering::Relaxed).is_multiple_of(*sample)
    }

    /// Number of reconciles that were lost since the start.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Waits until all reconciles queued so far are in the file, up to a limit. Returns whether they are.
    pub async fn flush(&self, limit: Duration) -> bool {
        let Some(sender) = &self.0.sender else { return true };
        let flushed = async {
            let (done, wait) = oneshot::channel();
            let mut message = Message::Flush(done);
            loop {
                message = match sender.try_send(message) {
                    Ok(()) => return wait.await.is_ok(),
                    Err(TrySendError::Disconnected(_)) => return false,
                    Err(TrySendError::Full(message)) => message,
                };
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(limit, flushed).await.unwrap_or(false)
    }
}

/// Ends the thread once its queue is empty.
impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take()
            && self.process == std::process::id()
        {
            // A panic of the thread was reported by its hook.
            drop(thread.join());
        }
    }
}

/// Writes until all senders are gone. Data goes to the operating system whenever the queue is empty.
fn run(receiver: &Receiver<Message>, files: &mut Files, lost: &AtomicU64) {
    let mut reported = 0;
    loop {
        files.check(lost);
        let message = match receiver.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                files.flush(lost);
                let missing = lost.load(Ordering::Relaxed);
                if missing > reported {
                    tracing::warn!(target: "lcm::history", lost = missing, "the history lacks reconciles: the queue was full, or the disk refused a write");
                    reported = missing;
                }
                match receiver.recv_timeout(files.between_checks()) {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        };
        match message {
            Message::Reconcile(reconcile) => files.write(&reconcile, lost),
            Message::Flush(done) => {
                files.flush(lost);
                // The caller may have stopped waiting.
                done.send(()).ok();
            }
        }
    }
    files.flush(lost);
}

/// The files of one writer.
struct Files {
    directory: PathBuf,
    limits: HistoryLimits,
    current: Option<Current>,
    paused_at: Option<Instant>,
    pause: Duration,
    checked_at: Option<Instant>,
    /// Bytes written since then.
    unchecked: u64,
}

/// The file that is being written. It is locked until it is closed.
struct Current {
    file: BufWriter<File>,
    path: PathBuf,
    begun_at: Instant,
    bytes: u64,
    /// Size at which it is closed.
    share: u64,
    /// Reconciles that may still be in the buffer.
    unflushed: u64,
    encoder: HistoryEncoder,
    text: Vec<u8>,
}

/// The files of all writers of a directory.
#[derive(Default)]
struct Listing {
    /// Those that are not being written any more, the oldest first.
    closed: Vec<(PathBuf, Metadata)>,
    /// Sizes of those that are.
    live: Vec<u64>,
}

impl Files {
    fn new(directory: PathBuf, limits: HistoryLimits) -> Self {
        Self { directory, limits, current: None, paused_at: None, pause: PAUSE, checked_at: None, unchecked: 0 }
    }

    /// Begins a file with a header, after files beyond the limits are deleted.
    fn begin(&mut self) -> io::Result<()> {
        let now: Timestamp = SystemTime::now().into();
        let mut listing = self.list()?;
        listing.live.push(0);
        let share = self.share(&listing);
        if self.delete_old(&listing) > self.limits.max_bytes {
            return Err(io::Error::other("other writers of the directory need all of its space"));
        }
        let path = self.directory.join(file_name(now));
        let mut options = OpenOptions::new();
        options.create_new(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // It is locked before it has the name of a history file, so that no other writer sees it without the lock.
        let unlocked = path.with_extension("new");
        let file = options.open(&unlocked)?;
        file.lock()?;
        std::fs::rename(&unlocked, &path)?;
        let mut current = Current {
            file: BufWriter::with_capacity(BUFFER, file),
            path,
            begun_at: Instant::now(),
            bytes: 0,
            share,
            unflushed: 0,
            encoder: HistoryEncoder::default(),
            text: Vec::new(),
        };
        current.encoder.header(now, &mut current.text)?;
        current.write()?;
        current.file.flush()?;
        self.current = Some(current);
        Ok(())
    }

    fn write(&mut self, reconcile: &RecordedReconcile, lost: &AtomicU64) {
        if self.paused_at.is_some_and(|at| at.elapsed() < self.pause) {
            lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Err(error) = self.try_write(reconcile) {
            lost.fetch_add(1, Ordering::Relaxed);
            self.give_up(&error, lost);
        }
    }

    fn try_write(&mut self, reconcile: &RecordedReconcile) -> io::Result<()> {
        if self.current.as_ref().is_none_or(|current| current.bytes >= current.share) {
            self.close()?;
            self.begin()?;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.encoder.reconcile(reconcile, &mut current.text)?;
        self.unchecked += current.text.len() as u64;
        current.write()?;
        current.unflushed += 1;
        Ok(())
    }

    fn flush(&mut self, lost: &AtomicU64) {
        let Some(current) = &mut self.current else { return };
        match current.file.flush() {
            Ok(()) => current.unflushed = 0,
            Err(error) => self.give_up(&error, lost),
        }
    }

    /// Closes the file.
    fn close(&mut self) -> io::Result<()> {
        if let Some(current) = &mut self.current {
            current.file.flush()?;
        }
        self.current = None;
        Ok(())
    }

    /// Leaves the file, whose last line may be torn, and pauses.
    fn give_up(&mut self, error: &io::Error, lost: &AtomicU64) {
        tracing::warn!(target: "lcm::history", %error, directory = %self.directory.display(), "the history cannot be written");
        if let Some(current) = self.current.take() {
            lost.fetch_add(current.unflushed, Ordering::Relaxed);
            // The disk refuses writes: the buffer is dropped instead of written by the destructor.
            drop(current.file.into_parts());
        }
        self.paused_at = Some(Instant::now());
    }

    /// Time between two checks of the limits, also of a writer that has nothing to write.
    fn between_checks(&self) -> Duration {
        (self.limits.max_age / PARTS as u32).clamp(Duration::from_millis(10), CHECK)
    }

    /// Applies the limits, if it is time to: the file is closed if it is old or beyond its share, and old files are
    /// deleted.
    fn check(&mut self, lost: &AtomicU64) {
        let is_recent = self.checked_at.is_some_and(|at| at.elapsed() < self.between_checks());
        if is_recent && self.unchecked < self.limits.max_bytes / CHECK_PARTS {
            return;
        }
        (self.checked_at, self.unchecked) = (Some(Instant::now()), 0);
        // The directory may be gone for a moment; the next check tells.
        let Ok(listing) = self.list() else { return };
        let (share, max_age) = (self.share(&listing), self.limits.max_age / PARTS as u32);
        if let Some(current) = &mut self.current {
            current.share = share;
            if (current.bytes >= share || current.begun_at.elapsed() >= max_age)
                && let Err(error) = self.close()
            {
                self.give_up(&error, lost);
            }
        }
        self.delete_old(&listing);
    }

    fn list(&self) -> io::Result<Listing> {
        let own = self.current.as_ref().map(|current| current.path.as_path());
        let mut listing = Listing::default();
        for path in files_in(&self.directory)? {
            // Another writer may have deleted it.
            let Ok(metadata) = path.metadata() else { continue };
            if own == Some(&*path) || is_live(&path) {
                listing.live.push(metadata.len());
            } else {
                listing.closed.push((path, metadata));
            }
        }
        Ok(listing)
    }

    /// The part of the space that one file may take: the more writers, the less, so that half of it is left to closed
    /// files.
    fn share(&self, listing: &Listing) -> u64 {
        self.limits.max_bytes / PARTS.max(2 * listing.live.len() as u64)
    }

    /// Deletes the oldest closed files until the limits hold, with room for the live ones to grow. Returns the size that
    /// is left, with that room.
    fn delete_old(&self, listing: &Listing) -> u64 {
        let share = self.share(listing);
        let live: u64 = listing.live.iter().map(|bytes| (*bytes).max(share)).sum();
        let mut total = live + listing.closed.iter().map(|(_, metadata)| metadata.len()).sum::<u64>();
        let now = SystemTime::now();
        for (path, metadata) in &listing.closed {
            let written_at = metadata.modified().unwrap_or(now);
            let is_old = now.duration_since(written_at).is_ok_and(|age| age > self.limits.max_age);
            if total <= self.limits.max_bytes && !is_old {
                continue;
            }
            if std::fs::remove_file(path).is_ok() || !path.exists() {
                total -= metadata.len();
            }
        }
        total
    }
}

/// A name that no other file has. Names sort by time.
fn file_name(now: Timestamp) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    format!("history-{}-{process}-{number}.{EXTENSION}", now.format("%Y%m%dT%H%M%S%3fZ"))
}

/// Whether a writer has the file locked. One that cannot be asked about counts as live.
fn is_live(path: &Path) -> bool {
    match File::open(path).map(|file| file.try_lock_shared()) {
        Ok(Ok(())) => false,
        Ok(Err(TryLockError::WouldBlock | TryLockError::Error(_))) => true,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

impl Current {
    /// Writes the encoded lines to the buffer.
    fn write(&mut self) -> io::Result<()> {
        self.file.write_all(&self.text)?;
        self.bytes += self.text.len() as u64;
        self.text.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::HistoryReader;
    use crate::lifecycle::decide;
    use crate::lifecycle::observation::Observation;
    use crate::lifecycle::policy::Policy;
    use crate::lifecycle::status::WorkerStatus;
    use crate::lifecycle::worker::Worker;

    /// A directory that is deleted at the end of its test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lcm-history-{test}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }

        fn reconciles(&self) -> usize {
            HistoryReader::open(&self.0)
                .map_or(0, |reader| reader.inspect(|line| assert!(line.is_ok(), "unreadable line")).count())
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn at_rest() -> RecordedReconcile {
        let (worker, seen) = (Worker::new("w-1", WorkerStatus::Stopped), Observation::default());
        let (policy, now) = (Arc::new(Policy::default()), "2026-02-06T08:00:00Z".parse().expect("valid"));
        let decision = decide(&worker, &seen, &policy, now);
        RecordedReconcile::new(&worker, &seen, policy, now, &decision, &[])
    }

    fn files(directory: &Directory) -> Files {
        Files { pause: Duration::ZERO, ..Files::new(directory.0.clone(), HistoryLimits::default()) }
    }

    #[test]
    fn reconciles_beyond_a_full_queue_are_counted() {
        let (directory, lost) = (Directory::new("full-queue"), Arc::new(AtomicU64::new(0)));
        let (sender, receiver) = sync_channel(2);
        let writer = HistoryWriter(Arc::new(Queue {
            sender: Some(sender),
            thread: None,
            directory: directory.0.clone(),
            lost: Arc::clone(&lost),
            routine: AtomicU64::new(0),
            sample: 1,
            process: std::process::id(),
        }));
        (0..5).for_each(|_| writer.write(at_rest()));
        assert_eq!(writer.lost(), 3);
        drop(writer);
        run(&receiver, &mut files(&directory), &lost);
        assert_eq!(directory.reconciles(), 2);
    }

    #[test]
    fn reconciles_of_a_directory_that_is_gone_are_counted() {
        let (directory, lost) = (Directory::new("gone"), AtomicU64::new(0));
        let mut files = files(&directory);
        std::fs::remove_dir_all(&directory.0).expect("deleted");
        (0..3).for_each(|_| files.write(&at_rest(), &lost));
        assert_eq!(lost.load(Ordering::Relaxed), 3);
        std::fs::create_dir_all(&directory.0).expect("a directory");
        files.write(&at_rest(), &lost);
        files.flush(&lost);
        assert_eq!((directory.reconciles(), lost.load(Ordering::Relaxed)), (1, 3), "it goes on");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn reconciles_that_a_full_disk_refuses_are_counted_once() {
        let (directory, lost) = (Directory::new("full-disk"), AtomicU64::new(0));
        let mut files = files(&directory);
        files.write(&at_rest(), &lost);
        files.flush(&lost);
        let full = File::options().write(true).open("/dev/full").expect("a device");
        files.current.as_mut().expect("a file").file = BufWriter::with_capacity(BUFFER, full);
        (0..3).for_each(|_| files.write(&at_rest(), &lost));
        assert_eq!(lost.load(Ordering::Relaxed), 0, "they are in the buffer");
        files.flush(&lost);
        files.write(&at_rest(), &lost);
        files.flush(&lost);
        assert_eq!((directory.reconciles(), lost.load(Ordering::Relaxed)), (2, 3));
    }
}
