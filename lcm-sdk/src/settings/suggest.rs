//! Which setting a misspelled variable was meant for.

/// Longest variable that is compared. Ours are shorter, and comparing costs the product of both lengths.
const LONGEST: usize = 64;

/// Shortest variable that is compared: among short ones everything looks like everything.
const SHORTEST: usize = 7;

/// The variable that an unknown one was probably meant to be, if any is close enough.
///
/// `settings` holds the variables of each setting, the prefixed one first. A prefixed alias (`LCM_INTERVAL_SECONDS`)
/// leads to the prefixed name of its setting.
pub(super) fn meant(variable: &str, settings: &[Vec<&'static str>]) -> Option<&'static str> {
    let known = || settings.iter().flatten().copied();
    if known().any(|candidate| candidate == variable) || !(SHORTEST..=LONGEST).contains(&variable.len()) {
        return None;
    }
    if let Some(alias) = variable.strip_prefix("LCM_")
        && let Some(setting) = settings.iter().find(|variables| variables.contains(&alias))
    {
        return setting.first().copied();
    }
    let tolerated = if variable.len() < 10 { 1 } else { 2 };
    let near = known().map(|candidate| (distance(variable, candidate), candidate));
    near.filter(|(distance, _)| *distance <= tolerated).min().map(|(_, candidate)| candidate)
}

/// How many letters must be added, dropped, changed or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > 2 {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut line = vec![row + 1];
        for (column, counterpart) in other.iter().enumerate() {
            let changed = last[column] + usize::from(letter != counterpart);
            let mut best = changed.min(last[column + 1] + 1).min(line[column] + 1);
            let swapped = row > 0 && column > 0 && one[row - 1] == *counterpart && *letter == other[column - 1];
            if swapped {
                best = best.min(before[column - 1] + 1);
            }
            line.push(best);
        }
        before = std::mem::replace(&mut last, line);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(variable: &str) -> Option<&'static str> {
        let settings = [
            vec!["LCM_RECONCILE_INTERVAL", "RECONCILE_INTERVAL", "INTERVAL_SECONDS"],
            vec!["LCM_ETCD_ENDPOINTS", "ETCD_ENDPOINTS"],
            vec!["LCM_LOG_LEVEL"],
            vec!["LCM_AWS_DEFAULT_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"],
        ];
        super::meant(variable, &settings)
    }

    #[test]
    fn near_misses_are_found_and_neighbours_left_alone() {
        assert_eq!(meant("RECONCILE_INTERVALL"), Some("RECONCILE_INTERVAL"));
        assert_eq!(meant("RECONICLE_INTERVAL"), Some("RECONCILE_INTERVAL"));
        assert_eq!(meant("ETCD_ENDPOINT"), Some("ETCD_ENDPOINTS"));
        assert_eq!(meant("LCM_LOG_LEVLE"), Some("LCM_LOG_LEVEL"));
        assert_eq!(meant("LCM_ETCD_ENDPOINT"), Some("LCM_ETCD_ENDPOINTS"));
        assert_eq!(meant("LCM_AWS_REGION"), Some("LCM_AWS_DEFAULT_REGION"));
        for fine in [
            "ETCDCTL_ENDPOINTS",
            "AWS_PROFILE",
            "PATH",
            "LOGNAME",
            "LOG_LEVEL",
            "LCM_ETCD_BIN",
            "RECONCILE_INTERVAL",
            "",
            "HOME",
        ] {
            assert_eq!(meant(fine), None, "{fine}");
        }
    }

    #[test]
    fn the_distance_counts_letters() {
        assert_eq!(distance("kitten", "kitten"), 0);
        assert_eq!(distance("kitten", "sittin"), 2);
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("", "ab"), 2);
    }
}
