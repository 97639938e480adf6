//! Which setting a misspelled variable was meant for.

/// Longest variable that is compared. Ours are shorter, and comparing costs the product of both lengths.
const LONGEST: usize = 64;

/// Shortest variable that is compared: among short ones everything looks like everything.
const SHORTEST: usize = 7;

/// The known variable that an unknown one was probably meant to be, if any is close enough.
pub(super) fn meant(variable: &str, known: &[&'static str]) -> Option<&'static str> {
    if known.contains(&variable) || !(SHORTEST..=LONGEST).contains(&variable.len()) {
        return None;
    }
    let tolerated = if variable.len() < 10 { 1 } else { 2 };
    let near = known.iter().map(|candidate| (distance(variable, candidate), *candidate));
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

    const KNOWN: &[&str] = &["RECONCILE_INTERVAL", "ETCD_ENDPOINTS", "LOG_LEVEL", "AWS_REGION"];

    #[test]
    fn near_misses_are_found_and_neighbours_left_alone() {
        assert_eq!(meant("RECONCILE_INTERVALL", KNOWN), Some("RECONCILE_INTERVAL"));
        assert_eq!(meant("RECONICLE_INTERVAL", KNOWN), Some("RECONCILE_INTERVAL"));
        assert_eq!(meant("ETCD_ENDPOINT", KNOWN), Some("ETCD_ENDPOINTS"));
        assert_eq!(meant("LOG_LEVLE", KNOWN), Some("LOG_LEVEL"));
        for fine in ["ETCDCTL_ENDPOINTS", "AWS_PROFILE", "PATH", "LOGNAME", "RECONCILE_INTERVAL", "", "HOME"] {
            assert_eq!(meant(fine, KNOWN), None, "{fine}");
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
