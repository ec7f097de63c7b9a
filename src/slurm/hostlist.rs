//! Slurm's bracket lists: `n[1-3,07],gpu[01-16]`, for node names and device files alike.
//!
//! Of the crates, hostlist-parser, hostlist and hostlist_iter expand without a
//! bound (`[0-4294967295]` would fill slurmstepd's memory), and nodeset brings
//! group files and set order, while the order of a `File=` list is its meaning.
//! So a small reader of our own, with two invariants: a name is looked up
//! without expanding anything, and an expansion never exceeds its limit.

use thiserror::Error;

use crate::device::clip;

/// Longest name that is built or looked up; device files and hosts have short ones.
pub(super) const MAX_NAME: usize = 255;
/// Bracket groups in one element; Slurm's own hostlist knows five dimensions.
const MAX_GROUPS: usize = 8;

#[derive(Debug, Error, PartialEq, Eq)]
pub enum HostlistError {
    #[error("'{0}' is not a list like n[1-3,7]")]
    Syntax(String),
    #[error("more than {0} names")]
    TooMany(usize),
}

/// Whether `name` is one of the list's names; padding counts (`n01` is not `n1`).
pub fn contains(list: &str, name: &str) -> Result<bool, HostlistError> {
    if name.len() > MAX_NAME {
        return Ok(false);
    }
    for element in elements(list) {
        if matches(bounded(element?)?, name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The names of the list, in its order; an error past `limit` names.
pub fn expand(list: &str, limit: usize) -> Result<Vec<String>, HostlistError> {
    let mut names = Vec::new();
    for element in elements(list) {
        let mut heads = vec![String::new()];
        for part in parts(bounded(element?)?) {
            heads = appended(heads, part, limit - names.len(), limit)?;
        }
        names.append(&mut heads);
        if names.len() > limit {
            return Err(HostlistError::TooMany(limit));
        }
    }
    Ok(names)
}

fn appended(
    mut heads: Vec<String>,
    part: Part,
    room: usize,
    limit: usize,
) -> Result<Vec<String>, HostlistError> {
    let group = match part {
        Part::Text(text) => {
            for head in &mut heads {
                if head.len() + text.len() > MAX_NAME {
                    return Err(syntax(text));
                }
                head.push_str(text);
            }
            return Ok(heads);
        }
        Part::Group(group) => group,
    };
    let mut names = Vec::new();
    for head in &heads {
        for range in ranges(group) {
            let Range { low, high, width } = range?;
            for number in low..=high {
                if names.len() >= room {
                    return Err(HostlistError::TooMany(limit));
                }
                names.push(format!("{head}{number:0width$}"));
            }
        }
    }
    Ok(names)
}

/// Each group makes the names anew, so a long row of them would take long.
fn bounded(element: &str) -> Result<&str, HostlistError> {
    let groups = element.bytes().filter(|&byte| byte == b'[').count();
    if groups > MAX_GROUPS { Err(syntax(element)) } else { Ok(element) }
}

fn syntax(text: &str) -> HostlistError {
    HostlistError::Syntax(clip(text))
}

/// The comma-separated elements; a comma inside brackets separates nothing.
fn elements(list: &str) -> impl Iterator<Item = Result<&str, HostlistError>> {
    let mut rest = list;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([',', ' ', '\t', '\n']);
        if rest.is_empty() {
            return None;
        }
        let mut open = false;
        for (at, c) in rest.char_indices() {
            match c {
                '[' | ']' if (c == '[') == open => {
                    let wrong = std::mem::take(&mut rest);
                    return Some(Err(syntax(wrong)));
                }
                '[' | ']' => open = !open,
                ',' | ' ' | '\t' | '\n' if !open => {
                    let (element, tail) = rest.split_at(at);
                    rest = tail;
                    return Some(Ok(element));
                }
                _ => {}
            }
        }
        let element = std::mem::take(&mut rest);
        Some(if open { Err(syntax(element)) } else { Ok(element) })
    })
}

enum Part<'a> {
    Text(&'a str),
    /// What stands between brackets.
    Group(&'a str),
}

/// An element whose brackets are known to be paired, cut at them.
fn parts(element: &str) -> impl Iterator<Item = Part<'_>> {
    element.split(']').flat_map(|piece| {
        let (text, group) = match piece.split_once('[') {
            Some((text, group)) => (text, Some(group)),
            None => (piece, None),
        };
        let text = (!text.is_empty()).then_some(Part::Text(text));
        text.into_iter().chain(group.map(Part::Group))
    })
}

struct Range {
    low: u64,
    high: u64,
    /// Digits of the low end as written: numbers are padded to it with zeros.
    width: usize,
}

fn ranges(group: &str) -> impl Iterator<Item = Result<Range, HostlistError>> {
    group.split(',').map(move |text| {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        match (number(low), number(high)) {
            (Some(from), Some(to)) if from <= to => {
                Ok(Range { low: from, high: to, width: low.len() })
            }
            _ => Err(syntax(group)),
        }
    })
}

fn number(digits: &str) -> Option<u64> {
    let plain = matches!(digits.len(), 1..=18) && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// Walks the element's parts and keeps the offsets in `name` that they can
/// reach: no backtracking, so no list makes it slow.
fn matches(element: &str, name: &str) -> Result<bool, HostlistError> {
    let mut reached = vec![0];
    for part in parts(element) {
        let mut next = Vec::new();
        for &at in &reached {
            match part {
                Part::Text(text) => {
                    if name[at..].starts_with(text) {
                        next.push(at + text.len());
                    }
                }
                Part::Group(group) => {
                    let digits = name[at..].bytes().take_while(u8::is_ascii_digit).count();
                    for len in 1..=digits.min(18) {
                        if in_group(group, &name[at..at + len])? {
                            next.push(at + len);
                        }
                    }
                }
            }
        }
        next.sort_unstable();
        next.dedup();
        if next.is_empty() {
            return Ok(false);
        }
        reached = next;
    }
    Ok(reached.contains(&name.len()))
}

fn in_group(group: &str, digits: &str) -> Result<bool, HostlistError> {
    let value = number(digits);
    for range in ranges(group) {
        let Range { low, high, width } = range?;
        if let Some(value) = value {
            let padded =
                digits.len() == width || (digits.len() > width && !digits.starts_with('0'));
            if padded && (low..=high).contains(&value) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(list: &str) -> Vec<String> {
        expand(list, 64).unwrap()
    }

    #[test]
    fn the_order_written_is_the_order_kept() {
        assert_eq!(
            all("/dev/nvidia[2-3,0],/dev/nvidia1"),
            ["/dev/nvidia2", "/dev/nvidia3", "/dev/nvidia0", "/dev/nvidia1"]
        );
        assert_eq!(all("a[0-1]b[08-09]"), ["a0b08", "a0b09", "a1b08", "a1b09"]);
        assert_eq!(all("x[9-11]"), ["x9", "x10", "x11"]);
        assert_eq!(all(""), [""; 0]);
    }

    #[test]
    fn names_are_found_with_their_padding() {
        let list = "n[1-3,7],gpu[01-16],login,r[1-2]n[1-40]x";
        for name in ["n1", "n7", "gpu01", "gpu10", "login", "r2n40x"] {
            assert_eq!(contains(list, name), Ok(true), "{name}");
        }
        for name in ["n4", "n01", "gpu1", "gpu17", "log", "login2", "r3n1x", "r2n40", ""] {
            assert_eq!(contains(list, name), Ok(false), "{name}");
        }
    }

    #[test]
    fn adjacent_groups_are_told_apart() {
        assert_eq!(contains("n[1-12][3-4]", "n123"), Ok(true));
        assert_eq!(contains("n[1-12][3-4]", "n12"), Ok(false));
    }

    #[test]
    fn what_slurm_refuses_is_refused() {
        for wrong in ["n[", "n]", "n[[1]]", "n[]", "n[3-1]", "n[a-b]", "n[1-]", "n[-1]", "n[1,]"] {
            assert!(expand(wrong, 8).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_huge_range_costs_nothing() {
        let huge = "/dev/nvidia[0-4294967295]";
        assert_eq!(expand(huge, 1024), Err(HostlistError::TooMany(1024)));
        assert_eq!(contains(huge, "/dev/nvidia4294967295"), Ok(true));
        let product = "[0-999]".repeat(8);
        assert_eq!(expand(&product, 1024), Err(HostlistError::TooMany(1024)));
        assert_eq!(contains(&product, &"1".repeat(200)), Ok(false));
    }

    #[test]
    fn a_row_of_groups_is_refused_before_it_is_built() {
        let row = "[1]".repeat(300_000);
        assert!(matches!(expand(&row, 1024), Err(HostlistError::Syntax(_))));
        assert!(matches!(contains(&row, "1"), Err(HostlistError::Syntax(_))));
        assert_eq!(all("a[1]b[2]c[3]d[4]e[5]"), ["a1b2c3d4e5"]);
    }

    proptest! {
        #[test]
        fn what_is_expanded_is_contained(list in "([a-z]{0,2}(\\[[0-9]{1,2}(-[0-9]{2})?\\])?[,x]?){1,4}") {
            if let Ok(names) = expand(&list, 256) {
                for name in names {
                    prop_assert_eq!(contains(&list, &name), Ok(true), "{} in {}", name, list);
                }
            }
        }

        #[test]
        fn any_text_is_read_without_panic(list in "[\\[\\],0-9a\\-é \u{0}]{0,60}", name in "[0-9aé]{0,20}") {
            let _ = contains(&list, &name);
            let names = expand(&list, 50);
            prop_assert!(names.is_err() || names.unwrap().len() <= 50);
        }
    }
}
