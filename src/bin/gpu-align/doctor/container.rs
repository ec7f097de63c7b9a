//! What a container that is started from here would show, by
//! NVIDIA_VISIBLE_DEVICES, against what CUDA_VISIBLE_DEVICES names.
//!
//! Both are made devices before they are compared: a finding says that a program
//! in the container would get others than one beside it, never that two texts
//! differ.

use gpu_align::device::{Device, Uuid, clip};

use super::Patient;
use super::findings::{Finding, Level, finding};
use crate::inside::scene::{Scene, VISIBLE};
use crate::inside::screen::count;

pub fn finding_of(patient: &Patient) -> Option<Finding> {
    let scene = &patient.scene;
    let wanted = scene.env.get("NVIDIA_VISIBLE_DEVICES")?;
    match wanted {
        "all" | "" => None,
        "void" | "none" => {
            let any = !scene.reach.is_empty() || patient.in_container;
            any.then(|| {
                finding(
                    Level::Note,
                    "container",
                    format!("NVIDIA_VISIBLE_DEVICES={wanted}: a container runtime mounts no card"),
                    "",
                    "set NVIDIA_VISIBLE_DEVICES=all where Slurm constrains devices",
                )
            })
        }
        _ if scene.reach.is_empty() => None,
        _ => match shown(scene, wanted) {
            Ok(shown) => compared(scene, &clip(wanted), &shown),
            // They were the host's numbers, and what they named is what is here.
            Err(_) if patient.in_container => None,
            Err(entry) => Some(finding(
                Level::Warning,
                "container",
                format!(
                    "NVIDIA_VISIBLE_DEVICES={} names '{}', which is none of the {} that can be \
                     opened here",
                    clip(wanted),
                    clip(entry),
                    count(scene.reach.len(), "device")
                ),
                "runtimes that start in the job, as enroot and Apptainer, count these and refuse; \
                 Docker's daemon counts the host's",
                ADVICE,
            )),
        },
    }
}

const ADVICE: &str = "set NVIDIA_VISIBLE_DEVICES=all and name cards by UUID (ids=uuid)";

/// The devices that a container shows, in PCI order; `Err`: the entry that names
/// none. A card in MIG mode comes with all its slices; `0:1` is the second slice
/// of the first card.
fn shown<'a>(scene: &Scene, wanted: &'a str) -> Result<Vec<Device>, &'a str> {
    let cards = scene.cards();
    let mut here: Vec<usize> = scene.reach.iter().map(|device| device.card).collect();
    here.dedup();
    let named = |entry: &str, device: &Device| {
        if let Ok(uuid) = entry.parse::<Uuid>() {
            let parent = cards.card(*device).uuid.as_ref();
            return cards.device_of_uuid(&uuid) == Some(*device) || parent == Some(&uuid);
        }
        let (card, slice) = match entry.split_once(':') {
            Some((card, slice)) => (card, Some(slice)),
            None => (entry, None),
        };
        let card = card.parse().ok().and_then(|index: usize| here.get(index));
        card == Some(&device.card) && slice.is_none_or(|slice| slice.parse().ok() == device.slice)
    };
    let entries: Vec<&str> = wanted.split(',').map(str::trim).collect();
    let none = |entry: &&&str| !scene.reach.iter().any(|device| named(entry, device));
    if let Some(entry) = entries.iter().find(none) {
        return Err(entry);
    }
    let any = |device: &Device| entries.iter().any(|entry| named(entry, device));
    Ok(scene.reach.iter().copied().filter(any).collect())
}

fn compared(scene: &Scene, wanted: &str, shown: &[Device]) -> Option<Finding> {
    let Some(list) = scene.env.get(VISIBLE) else {
        return (shown != scene.reach).then(|| {
            finding(
                Level::Note,
                "container",
                format!(
                    "NVIDIA_VISIBLE_DEVICES={wanted} and CUDA_VISIBLE_DEVICES is unset: a container \
                     shows {}, a program beside it sees {}",
                    names(shown),
                    names(&scene.reach)
                ),
                "",
                "set NVIDIA_VISIBLE_DEVICES=all where Slurm constrains devices",
            )
        });
    };
    let (outside, inside) = (scene.selected(), scene.selected_among(shown));
    (outside != inside).then(|| {
        finding(
            Level::Warning,
            "container",
            format!(
                "NVIDIA_VISIBLE_DEVICES={wanted} shows {}: there CUDA_VISIBLE_DEVICES={} selects \
                 {}, and beside the container {}",
                names(shown),
                clip(list),
                names(&inside),
                names(&outside)
            ),
            "a container counts the cards that it shows from 0, and CUDA_VISIBLE_DEVICES counts \
             among those",
            ADVICE,
        )
    })
}

/// `cards 4, 5`, by nvidia-smi's index on the host; `card 0:1` is a slice.
fn names(devices: &[Device]) -> String {
    let name = |device: &Device| match device.slice {
        Some(slice) => format!("{}:{slice}", device.card),
        None => device.card.to_string(),
    };
    match devices {
        [] => "no card".into(),
        [one] => format!("card {}", name(one)),
        _ => format!("cards {}", devices.iter().map(name).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::tests::patient;
    use crate::inside::simulated::{node, scene};

    /// What doctor says of these two lists on a node whose cards with these
    /// minors can be opened.
    fn say(
        name: &str,
        minors: &[u32],
        wanted: &str,
        list: Option<&str>,
    ) -> Option<(Level, String)> {
        let mut env = vec![("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("NVIDIA_VISIBLE_DEVICES", wanted)];
        env.extend(list.map(|list| (VISIBLE, list)));
        let found = finding_of(&patient(scene(&node(name), minors, &env)))?;
        Some((found.level, found.what))
    }

    const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
    const U4: &str = "GPU-00000000-0008-4000-8000-000000000004";
    const U5: &str = "GPU-00000000-0008-4000-8000-000000000005";

    #[test]
    fn the_same_cards_in_two_spellings_are_no_finding() {
        let uuids = format!("{U4},{U5}");
        assert_eq!(say("tidy8", &ALL, "4,5", Some(&uuids)), None);
        assert_eq!(say("tidy8", &ALL, &uuids, Some(&uuids)), None);
        assert_eq!(say("tidy8", &ALL, "all", Some("4,5")), None);
        // FC-38 (b): where devices are constrained both count the same cards.
        assert_eq!(say("tidy8", &[4, 5], "0,1", Some("0,1")), None);
        assert_eq!(say("tidy8", &[4, 5], &uuids, Some("0,1")), None);
        assert_eq!(say("tidy8", &ALL, "3,4,5", Some(&uuids)), None);
    }

    #[test]
    fn fc_38_host_numbers_in_both_lists_select_nothing_in_the_container() {
        let (level, what) = say("tidy8", &ALL, "4,5,6,7", Some("4,5,6,7")).unwrap();
        assert_eq!(level, Level::Warning);
        assert_eq!(
            what,
            "NVIDIA_VISIBLE_DEVICES=4,5,6,7 shows cards 4, 5, 6, 7: there \
             CUDA_VISIBLE_DEVICES=4,5,6,7 selects no card, and beside the container cards 4, 5, 6, 7"
        );
        let uuids = format!("{U4},{U5}");
        let (level, what) = say("tidy8", &ALL, &uuids, Some("1")).unwrap();
        assert_eq!(level, Level::Warning);
        assert!(what.contains("selects card 5, and beside the container card 1"), "{what}");
        assert_eq!(say("tidy8", &ALL, "2", Some(U4)).unwrap().0, Level::Warning);
    }

    #[test]
    fn an_unset_variable_is_a_note_at_most() {
        assert_eq!(say("tidy8", &[4, 5], "0,1", None), None);
        let (level, what) = say("tidy8", &[4, 5], "0", None).unwrap();
        assert_eq!(level, Level::Note);
        assert!(what.ends_with("shows card 4, a program beside it sees cards 4, 5"), "{what}");
    }

    #[test]
    fn what_names_no_card_of_the_job_is_said() {
        let (level, what) = say("tidy8", &[4, 5], "4,5", Some("0,1")).unwrap();
        assert_eq!(level, Level::Warning);
        assert!(what.contains("names '4', which is none of the 2 devices"), "{what}");
        assert!(say("tidy8", &[4, 5], "GPU-1", Some("0,1")).is_some());
        let env = [("NVIDIA_VISIBLE_DEVICES", "4,5"), (VISIBLE, "0,1")];
        let mut inside = patient(scene(&node("tidy8"), &[4, 5], &env));
        inside.in_container = true;
        assert_eq!(finding_of(&inside), None);
    }

    #[test]
    fn a_strangers_text_is_short_and_without_control_characters() {
        let long = format!("0,\x1b[2J\n{}", "7".repeat(1 << 16));
        let here = format!("0,{}1", " ".repeat(1 << 16));
        for (wanted, list) in [(&*long, Some("0")), (&here, Some("2")), (&here, None)] {
            let (_, what) = say("tidy8", &[0, 1, 2], wanted, list).unwrap();
            assert!(what.len() < 400 && !what.contains(char::is_control), "{what}");
        }
    }

    #[test]
    fn slices_go_by_their_cards_place_and_their_own() {
        let minors = [0, 1, 2, 3];
        let scene = |wanted: &str| {
            let env = [("NVIDIA_VISIBLE_DEVICES", wanted)];
            let scene = scene(&node("fc06"), &minors, &env);
            (shown(&scene, wanted).map_err(str::to_owned), scene)
        };
        let (first, seen) = scene("0:1");
        assert_eq!(first, Ok(vec![Device { card: 0, slice: Some(1) }]));
        let slices: Vec<Device> = seen.reach.iter().copied().filter(|d| d.card == 0).collect();
        assert_eq!(scene("0").0, Ok(slices));
        assert_eq!(scene("0:7").0, Err("0:7".into()));
    }
}
