//! The records as they are kept. Callers poll: most requests say what one before them said, at another time, so what is
//! said is kept once, and a request is a moment and a place where to read it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::sketch::{Said, Sketch};
use super::{Outcome, Record, RecordFilter};

/// What an entry takes.
const ENTRY: usize = size_of::<Entry>();
/// About what a saying takes besides its bytes: its place, the way to it, and what an allocation costs.
const SAYING: usize = 96;
/// The same for the name of a call.
const CALL: usize = 40;

/// The latest requests, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Kept {
    recorded: u64,
    bytes: usize,
    entries: VecDeque<Entry>,
    sayings: Sayings,
    /// The names of calls, which are all different, by the number of the request. Not every caller names them.
    calls: VecDeque<(u64, Box<str>)>,
    /// Where a request is written before it is known whether it says something new.
    draft: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: DateTime<Utc>,
    saying: u32,
}

impl Kept {
    /// How many were written down, forgotten ones included.
    pub(super) fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Writes a request down.
    pub(super) fn push(&mut self, sketch: &Sketch<'_>, outcome: &Outcome) {
        self.draft.clear();
        sketch.write(outcome, &mut self.draft);
        let (saying, new_bytes) = self.sayings.take_in(&self.draft);
        self.recorded += 1;
        self.bytes += ENTRY + new_bytes;
        self.entries.push_back(Entry { at: sketch.at, saying });
        if let Some(call) = sketch.call() {
            self.bytes += CALL + call.len();
            self.calls.push_back((self.recorded, call.into()));
        }
    }

    /// Forgets the oldest until no more than so many requests and bytes are left.
    pub(super) fn forget_down_to(&mut self, requests: usize, bytes: usize) {
        while self.entries.len() > requests || self.bytes > bytes {
            let oldest = self.first_number();
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= ENTRY + self.sayings.let_go(entry.saying);
            if self.calls.front().is_some_and(|(number, _)| *number == oldest) {
                self.bytes -= self.calls.pop_front().map_or(0, |(_, call)| CALL + call.len());
            }
        }
    }

    /// How many match.
    pub(super) fn count(&self, filter: &RecordFilter) -> usize {
        let matching = self.matching(filter).count();
        filter.limit.map_or(matching, |limit| matching.min(limit))
    }

    /// Those that match, oldest first.
    pub(super) fn find(&self, filter: &RecordFilter) -> Vec<Record> {
        let mut found: Vec<_> = self.matching(filter).take(filter.limit.unwrap_or(usize::MAX)).collect();
        found.reverse();
        found.into_iter().map(|(number, entry)| self.show(number, entry)).collect()
    }

    /// The one that was written down last.
    pub(super) fn latest(&self) -> Option<Record> {
        self.entries.back().map(|entry| self.show(self.recorded, entry))
    }

    /// Those that match, latest first.
    fn matching<'a>(&'a self, filter: &'a RecordFilter) -> impl Iterator<Item = (u64, &'a Entry)> {
        let past = filter.after.map_or(0, |after| after.saturating_add(1).saturating_sub(self.first_number()));
        let skipped = usize::try_from(past).unwrap_or(usize::MAX).min(self.entries.len());
        let latest_first = self.entries.range(skipped..).enumerate().rev();
        let first = self.first_number() + skipped as u64;
        latest_first.map(move |(place, entry)| (first + place as u64, entry)).filter(move |(number, entry)| {
            Said::read(self.sayings.get(entry.saying)).matches(filter)
                && filter.call.as_deref().is_none_or(|call| self.call(*number) == Some(call))
        })
    }

    fn show(&self, number: u64, entry: &Entry) -> Record {
        Said::read(self.sayings.get(entry.saying)).into_record(number, entry.at, self.call(number))
    }

    fn call(&self, number: u64) -> Option<&str> {
        let place = self.calls.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.calls.get(place).map(|(_, call)| &**call)
    }

    fn first_number(&self) -> u64 {
        self.recorded + 1 - self.entries.len() as u64
    }
}

/// What is said by requests, each thing once.
#[derive(Debug, Default)]
struct Sayings {
    slots: Vec<Slot>,
    free: Vec<u32>,
    places: HashMap<Arc<[u8]>, u32>,
}

#[derive(Debug, Default)]
struct Slot {
    saying: Arc<[u8]>,
    uses: usize,
}

impl Sayings {
    fn get(&self, place: u32) -> &[u8] {
        self.slots.get(place as usize).map_or(&[], |slot| &slot.saying)
    }

    /// Where a saying is from now on, and how many bytes that takes.
    fn take_in(&mut self, said: &[u8]) -> (u32, usize) {
        if let Some(place) = self.places.get(said).copied() {
            self.slots[place as usize].uses += 1;
            return (place, 0);
        }
        let slot = Slot { saying: said.into(), uses: 1 };
        let saying = Arc::clone(&slot.saying);
        let place = match self.free.pop() {
            Some(place) => {
                self.slots[place as usize] = slot;
                place
            }
            None => {
                self.slots.push(slot);
                // There are never more of them than requests are kept.
                (self.slots.len() - 1) as u32
            }
        };
        self.places.insert(saying, place);
        (place, SAYING + said.len())
    }

    /// Takes one use away; the answer is how many bytes that frees.
    fn let_go(&mut self, place: u32) -> usize {
        let slot = &mut self.slots[place as usize];
        slot.uses -= 1;
        if slot.uses > 0 {
            return 0;
        }
        let Slot { saying, .. } = std::mem::take(slot);
        self.places.remove(&saying);
        self.free.push(place);
        SAYING + saying.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    fn push(kept: &mut Kept, record: &Record) {
        kept.push(&Sketch::of(record), &record.outcome);
    }

    #[test]
    fn what_is_said_again_takes_no_more_than_its_moment() {
        let mut kept = Kept::default();
        let polled = record("DescribeInstances", &[("InstanceId.1", "i-1")]);
        push(&mut kept, &polled);
        let first = kept.bytes;
        (0..99).for_each(|_| push(&mut kept, &polled));
        assert_eq!(kept.bytes, first + 99 * ENTRY);
        assert_eq!(kept.sayings.places.len(), 1);
        assert_eq!(kept.find(&RecordFilter::default()).len(), 100);
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let mut kept = Kept::default();
        let full = Record {
            subject: Some("i-1,i-2".to_owned()),
            call: Some("a-call".to_owned()),
            client: Some(String::new()),
            faults: vec![1, u64::MAX],
            outcome: Outcome::Refused { status: 503, code: "RequestLimitExceeded".to_owned() },
            ..record("StopInstances", &[("InstanceId.1", "i-1"), ("Tag", "ä\0"), ("", "")])
        };
        let all = [
            full,
            Record { outcome: Outcome::Reset, region: None, attempt: None, ..record("", &[]) },
            Record { outcome: Outcome::ResponseDropped, ..record("RunInstances", &[]) },
            Record { outcome: Outcome::Abandoned, attempt: Some(u32::MAX), ..record("RunInstances", &[]) },
        ];
        all.iter().for_each(|record| push(&mut kept, record));
        let numbered = all.into_iter().zip(1..).map(|(record, number)| Record { number, ..record });
        assert_eq!(kept.find(&RecordFilter::default()), numbered.collect::<Vec<_>>());
    }

    #[test]
    fn what_nobody_says_any_more_is_forgotten_with_its_bytes() {
        let mut kept = Kept::default();
        for number in 0..100 {
            let call = (number % 3 == 0).then(|| format!("call-{number}"));
            push(&mut kept, &Record { call, ..record(&format!("Operation{}", number % 7), &[]) });
        }
        kept.forget_down_to(2, usize::MAX);
        let names: Vec<_> =
            kept.find(&RecordFilter::default()).into_iter().map(|it| (it.number, it.operation)).collect();
        assert_eq!(names, [(99, "Operation0".to_owned()), (100, "Operation1".to_owned())]);
        assert_eq!((kept.sayings.places.len(), kept.calls.len()), (2, 1));
        kept.forget_down_to(0, 0);
        assert_eq!((kept.bytes, kept.sayings.places.len(), kept.calls.len()), (0, 0, 0));
        push(&mut kept, &record("Again", &[]));
        assert_eq!(kept.latest().map(|it| (it.number, it.operation)), Some((101, "Again".to_owned())));
    }
}
