//! Instance types: one catalog for launches, limits and descriptions.
//!
//! `instance_types.txt` has a line per type, as AWS described it in the region us-east-1. An empty column is that of the line
//! before. AWS adds types from time to time: a line more in the table makes one known.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::error::AwsError;
use crate::suggest::closest;

const TABLE: &str = include_str!("instance_types.txt");

/// Columns of the table, in order.
const COLUMNS: usize = 24;

/// An instance type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstanceType {
    columns: [&'static str; COLUMNS],
}

/// Properties that a type has or does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trait {
    AutoRecovery,
    BareMetal,
    Burstable,
    CurrentGeneration,
    DedicatedHosts,
    FreeTier,
    Hibernation,
}

/// An instance store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Storage {
    /// Size in GB.
    pub(crate) size: Option<&'static str>,
    pub(crate) encryption: Option<&'static str>,
    pub(crate) nvme: Option<&'static str>,
    pub(crate) disks: Vec<Disk>,
}

/// Disks of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) count: &'static str,
    /// Size of each in GB.
    pub(crate) size: &'static str,
    pub(crate) kind: &'static str,
}

impl InstanceType {
    /// Returns all types in the order of the table.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TABLE.lines().scan([""; COLUMNS], |last, line| {
            for (column, text) in last.iter_mut().zip(line.split('|')) {
                if !text.is_empty() {
                    *column = text;
                }
            }
            Some(Self { columns: *last })
        })
    }

    /// Returns the name, such as `m5zn.metal`.
    pub(crate) fn name(&self) -> &'static str {
        self.columns[0]
    }

    /// Returns whether the type has a property.
    pub(crate) fn has(&self, property: Trait) -> bool {
        let letter = match property {
            Trait::AutoRecovery => 'r',
            Trait::BareMetal => 'b',
            Trait::Burstable => 'u',
            Trait::CurrentGeneration => 'c',
            Trait::DedicatedHosts => 'd',
            Trait::FreeTier => 'f',
            Trait::Hibernation => 'h',
        };
        self.columns[1].contains(letter)
    }

    pub(crate) fn hypervisor(&self) -> Option<&'static str> {
        self.text(2)
    }

    pub(crate) fn manufacturer(&self) -> Option<&'static str> {
        self.text(3)
    }

    pub(crate) fn architectures(&self) -> Vec<&'static str> {
        self.list(4)
    }

    /// Returns the sustained clock speed in GHz.
    pub(crate) fn clock_speed(&self) -> Option<&'static str> {
        self.text(5)
    }

    pub(crate) fn processor_features(&self) -> Vec<&'static str> {
        self.list(6)
    }

    /// Returns the default numbers of vCPUs, cores and threads per core.
    pub(crate) fn cpu(&self) -> [u32; 3] {
        let mut numbers = self.columns[7].split(',').map(|number| number.parse().unwrap_or_default());
        [(); 3].map(|()| numbers.next().unwrap_or_default())
    }

    /// Returns the accepted numbers of cores.
    pub(crate) fn valid_cores(&self) -> Vec<u32> {
        self.list(8).into_iter().flat_map(range).collect()
    }

    pub(crate) fn valid_threads(&self) -> Vec<&'static str> {
        self.list(9)
    }

    /// Returns the memory in MiB.
    pub(crate) fn memory(&self) -> &'static str {
        self.columns[10]
    }

    /// Returns the support of EBS optimization, encryption and NVMe, the maximum number of attachments and the type of
    /// that limit.
    pub(crate) fn ebs(&self) -> [Option<&'static str>; 5] {
        self.parts(11)
    }

    /// Returns the baseline bandwidth, throughput and operations of EBS, and the maximum of each.
    pub(crate) fn ebs_optimized(&self) -> Option<[Option<&'static str>; 6]> {
        self.text(12).map(|_| self.parts(12))
    }

    /// Returns the instance store, if the type has one.
    pub(crate) fn storage(&self) -> Option<Storage> {
        self.text(13)?;
        let [size, encryption, nvme] = self.parts(13);
        let disk = |text: &'static str| {
            let (count, rest) = text.split_once('x')?;
            let at = rest.find(|letter: char| letter.is_ascii_alphabetic())?;
            Some(Disk { count, size: &rest[..at], kind: &rest[at..] })
        };
        Some(Storage { size, encryption, nvme, disks: self.list(13).into_iter().skip(3).filter_map(disk).collect() })
    }

    /// Returns the network performance, ENA support, maximum of EFA interfaces, encryption in transit, flexible ENA
    /// queues, IPv4 and IPv6 addresses per interface, IPv6 support, maximum of cards and of interfaces, and the bandwidth
    /// weightings.
    pub(crate) fn network(&self) -> [Option<&'static str>; 11] {
        self.parts(14)
    }

    pub(crate) fn boot_modes(&self) -> Vec<&'static str> {
        self.list(15)
    }

    pub(crate) fn root_devices(&self) -> Vec<&'static str> {
        self.list(16)
    }

    pub(crate) fn usage_classes(&self) -> Vec<&'static str> {
        self.list(17)
    }

    pub(crate) fn virtualization(&self) -> Vec<&'static str> {
        self.list(18)
    }

    /// Returns the support of Nitro Enclaves and of NitroTPM, and of migration by a reboot.
    pub(crate) fn nitro(&self) -> [Option<&'static str>; 3] {
        [self.text(19), self.text(20), self.text(22)]
    }

    pub(crate) fn tpm_versions(&self) -> Vec<&'static str> {
        self.list(21)
    }

    pub(crate) fn placement_strategies(&self) -> Vec<&'static str> {
        self.list(23)
    }

    /// `-` is the absence of a value.
    fn text(&self, column: usize) -> Option<&'static str> {
        Some(self.columns[column]).filter(|text| *text != "-")
    }

    fn list(&self, column: usize) -> Vec<&'static str> {
        self.text(column).into_iter().flat_map(|text| text.split(',')).collect()
    }

    fn parts<const N: usize>(&self, column: usize) -> [Option<&'static str>; N] {
        let mut parts = self.columns[column].split(',').map(|part| Some(part).filter(|part| *part != "-"));
        [(); N].map(|()| parts.next().flatten())
    }
}

/// Reads a number, or numbers as `first-last/step`.
fn range(text: &str) -> Vec<u32> {
    let numbers: Vec<u32> = text.split(['-', '/']).filter_map(|number| number.parse().ok()).collect();
    match *numbers {
        [first, last, step] if step > 0 => (first..=last).step_by(step as usize).collect(),
        _ => numbers,
    }
}

/// Default cores and threads per core by type.
static CPUS: LazyLock<HashMap<&'static str, (u32, u32)>> = LazyLock::new(|| {
    let cpu = |one: InstanceType| {
        let [_, cores, threads] = one.cpu();
        (one.name(), (cores, threads))
    };
    InstanceType::all().map(cpu).collect()
});

/// Returns the default cores and threads per core of a type.
pub(crate) fn default_cpu(name: &str) -> (u32, u32) {
    CPUS.get(name).copied().unwrap_or((1, 1))
}

/// Returns whether the catalog has a type.
pub(crate) fn is_known_type(name: &str) -> bool {
    CPUS.contains_key(name)
}

/// Refuses an instance type that does not exist.
pub(crate) fn checked_type(name: &str) -> Result<&str, AwsError> {
    if is_known_type(name) {
        return Ok(name);
    }
    let meant = closest(name, InstanceType::all().map(|one| one.name()));
    let hint = meant.map(|meant| format!(" Did you mean '{meant}'?")).unwrap_or_default();
    Err(AwsError::new("InvalidParameterValue", format!("Invalid value '{name}' for InstanceType.{hint}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_every_column() {
        let all: Vec<InstanceType> = InstanceType::all().collect();
        assert!(all.len() > 1000, "{}", all.len());
        for one in &all {
            assert!(one.columns.iter().all(|column| !column.is_empty()), "{}", one.name());
            let [vcpus, cores, threads] = one.cpu();
            assert!(vcpus > 0 && vcpus == cores * threads, "{}: {vcpus} = {cores} * {threads}", one.name());
            assert!(one.memory().parse::<u32>().is_ok(), "{}", one.name());
            assert!(one.storage().is_none_or(|storage| !storage.disks.is_empty()), "{}", one.name());
        }
        assert_eq!(CPUS.len(), all.len(), "each type once");
    }

    #[test]
    fn columns_are_those_of_the_type() {
        let find = |name: &str| InstanceType::all().find(|one| one.name() == name).expect(name);
        let metal = find("m5zn.metal");
        assert_eq!((metal.cpu(), metal.memory(), metal.clock_speed()), ([48, 24, 2], "196608", Some("4.5")));
        assert!(metal.has(Trait::BareMetal) && !metal.has(Trait::Burstable) && metal.hypervisor().is_none());
        assert_eq!(metal.ebs_optimized().map(|values| values[2]), Some(Some("80000")));
        let disks = find("z1d.metal").storage().map(|storage| storage.disks);
        assert_eq!(disks, Some(vec![Disk { count: "2", size: "900", kind: "ssd" }]));
        assert_eq!(find("m5.2xlarge").valid_cores(), [2, 4]);
        assert_eq!(range("4-16/4"), [4, 8, 12, 16]);
    }

    #[test]
    fn unknown_types_are_refused_with_the_probable_one() {
        for known in ["t2.micro", "t3.nano", "m1.small", "m5.large", "c5.18xlarge", "z1d.metal", "m7i-flex.large"] {
            assert!(checked_type(known).is_ok(), "{known}");
        }
        let error = checked_type("m5zn.metl").expect_err("a typo");
        assert_eq!(
            (&*error.code, &*error.message),
            ("InvalidParameterValue", "Invalid value 'm5zn.metl' for InstanceType. Did you mean 'm5zn.metal'?")
        );
        assert!(checked_type("big").is_err() && checked_type("c5.8xlarge").is_err());
    }
}
