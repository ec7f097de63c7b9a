//! The order and choice that AutoDetect makes, step by step as slurmd does it.
//!
//! Follows `_merge_system_gres_conf` and the functions under it
//! (`src/plugins/gres/gpu/gres_gpu.c`, alike in 22.05.8 and 24.11.5). glibc's
//! qsort, which Slurm's `list_sort` calls, keeps equal records in their order.
//!
//! Not followed: gpu/nvml of 22.05 and older gave slices Links of their own,
//! by index within their card, and so mixed them with the whole cards.

use std::cmp::Ordering;
use std::collections::VecDeque;

use super::gres_list::Position;
use crate::device::{Card, Device, Inventory};

/// One device of slurmd's list, with what its order hangs on.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// As Slurm spells it: several files are joined by commas.
    pub file: Option<String>,
    pub kind: Option<String>,
    pub link: Option<usize>,
    pub position: Position,
}

fn nvidia_file(card: &Card) -> String {
    format!("/dev/nvidia{}", card.minor)
}

/// As gpu/nvml lists them: cards with Links by NVML's index, slices without.
pub(super) fn nvml_cards(inventory: &Inventory) -> Vec<Entry> {
    let entry = |device: Device| {
        let card = inventory.card(device);
        let mut file = nvidia_file(card);
        let mut kind = underscored(&card.model);
        if let Some(slice) = inventory.slice(device) {
            for cap in slice.cap_minors {
                file += &format!(",/dev/nvidia-caps/nvidia-cap{cap}");
            }
            // Of a sliced card's model Slurm keeps what stands before the first dash.
            kind.truncate(kind.find('-').unwrap_or(kind.len()));
            kind += &format!("_{}", slice.profile);
        }
        Entry {
            file: Some(file),
            kind: Some(kind),
            link: device.slice.is_none().then_some(device.card),
            position: Position { card: Some(device.card), device: Some(device) },
        }
    };
    inventory.devices().map(entry).collect()
}

/// As gpu/nvidia lists them: whole cards only, no Links.
pub(super) fn proc_cards(inventory: &Inventory) -> Vec<Entry> {
    let entry = |(rank, card): (usize, &Card)| Entry {
        file: Some(nvidia_file(card)),
        kind: Some(underscored(&card.model)),
        link: None,
        position: Position { card: Some(rank), device: Some(Device::whole(rank)) },
    };
    inventory.cards().iter().enumerate().map(entry).collect()
}

/// Slurm's `gpu_common_underscorify_tolower`.
fn underscored(model: &str) -> String {
    model.to_ascii_lowercase().replace(' ', "_")
}

/// As `_merge_system_gres_conf`: each configured device takes a detected one
/// that fits its type and file; one that has a file but no match stays; what
/// nothing asks for is left out.
pub(super) fn detected(
    system: Vec<Entry>,
    mut configured: Vec<Entry>,
    slurm_known: bool,
) -> Vec<Entry> {
    if !slurm_known && configured.iter().all(|entry| entry.file.is_none()) {
        configured = vec![Entry::default(); system.len()];
    }
    let mut system = with_configured_types(system, &mut configured);
    configured.sort_by(by_file);
    system.sort_by(by_file);
    let mut list = Vec::new();
    for entry in configured {
        let fits = |found: &Entry| {
            (entry.kind.is_none() || entry.kind == found.kind)
                && (entry.file.is_none() || entry.file == found.file)
        };
        match system.iter().position(fits) {
            Some(at) => list.push(system.remove(at)),
            None if entry.file.is_some() => list.push(entry),
            None => {}
        }
    }
    list.sort_by(by_file);
    list.sort_by_key(|entry| (entry.link.is_none(), entry.link));
    list
}

/// As `_normalize_sys_gres_types`: a detected model takes the longest
/// configured type that is part of its name.
fn with_configured_types(mut system: Vec<Entry>, configured: &mut [Entry]) -> Vec<Entry> {
    let untyped = configured.iter().all(|entry| entry.kind.is_none());
    configured.sort_by(by_type);
    system.sort_by(by_type);
    let mut unused: VecDeque<String> = configured.iter().filter_map(|e| e.kind.clone()).collect();
    for entry in &mut system {
        let model = entry.kind.clone().unwrap_or_default().to_ascii_lowercase();
        let part = |kind: &String| model.contains(&kind.to_ascii_lowercase());
        match unused.iter().position(part) {
            Some(at) => entry.kind = unused.remove(at),
            None if untyped => entry.kind = None,
            None => {}
        }
    }
    system
}

fn by_type(a: &Entry, b: &Entry) -> Ordering {
    match (&a.kind, &b.kind) {
        (Some(x), Some(y)) => {
            (y.len().cmp(&x.len())).then_with(|| x.cmp(y)).then_with(|| by_file(a, b))
        }
        (x, y) => x.is_some().cmp(&y.is_some()),
    }
}

fn by_file(a: &Entry, b: &Entry) -> Ordering {
    match (&a.file, &b.file) {
        (Some(x), Some(y)) => natural(x.as_bytes(), y.as_bytes()),
        (x, y) => y.is_some().cmp(&x.is_some()),
    }
}

/// Slurm's `strnatcmp`: runs of digits compare as numbers, unless one begins
/// with 0; then digit by digit, as a fraction.
fn natural(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        let (run_a, run_b) = (digits(a), digits(b));
        let order = if run_a.is_empty() || run_b.is_empty() {
            let (Some(x), Some(y)) = (a.first(), b.first()) else {
                return a.len().cmp(&b.len());
            };
            let order = x.cmp(y);
            (a, b) = (&a[1..], &b[1..]);
            order
        } else {
            let fraction = run_a[0] == b'0' || run_b[0] == b'0';
            let order = match fraction {
                true => run_a.cmp(run_b),
                false => run_a.len().cmp(&run_b.len()).then(run_a.cmp(run_b)),
            };
            (a, b) = (&a[run_a.len()..], &b[run_b.len()..]);
            order
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn digits(text: &[u8]) -> &[u8] {
    let len = text.iter().take_while(|b| b.is_ascii_digit()).count();
    &text[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn natural_order_is_strnatcmps() {
        let less = [("nvidia2", "nvidia10"), ("a", "a1"), ("x01", "x1"), ("a,b", "a1"), ("", "a")];
        for (a, b) in less {
            let (x, y) = (a.as_bytes(), b.as_bytes());
            assert_eq!(natural(x, y), Ordering::Less, "{a} {b}");
            assert_eq!(natural(y, x), Ordering::Greater, "{b} {a}");
        }
    }
}
