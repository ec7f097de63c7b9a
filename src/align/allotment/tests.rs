use super::*;
use crate::device::{Card, Minor};

/// A node whose card of rank r has minor `minors[r]`.
fn node(minors: &[u32]) -> Inventory {
    let card = |(rank, minor): (usize, &u32)| Card {
        pci: format!("0000:{:02x}:00.0", rank * 0x10 + 1).parse().unwrap(),
        minor: Minor(*minor),
        uuid: None,
        model: "A".into(),
        numa: None,
        slices: Vec::new(),
    };
    Inventory::new(minors.iter().enumerate().map(card).collect())
}

const INV8P: [u32; 8] = [4, 5, 6, 7, 2, 3, 0, 1];

/// gres.conf with one File a position, given as minors.
fn gres(inventory: &Inventory, minors: impl IntoIterator<Item = u32>) -> Vec<Option<Device>> {
    let card = |minor| inventory.rank_of_minor(Minor(minor)).map(Device::whole);
    minors.into_iter().map(card).collect()
}

fn cards(ranks: &[usize]) -> Vec<Device> {
    ranks.iter().copied().map(Device::whole).collect()
}

fn facts<'a>(inventory: &'a Inventory, reach: &'a [Device], positions: &'a Positions) -> Facts<'a> {
    Facts {
        inventory,
        reach,
        positions: Some(positions),
        cards_gone: false,
        step: None,
        count: None,
        task: None,
        first_place: None,
        named: None,
        reading: Reading::Rank,
    }
}

fn decided(facts: &Facts) -> Allotment {
    allotment(facts).unwrap().unwrap()
}

#[test]
fn rule_1_the_kernel_is_the_truth() {
    let node = node(&INV8P);
    let (list, reach) = (gres(&node, 0..8), cards(&[0, 1, 5]));
    // Slurm's own numbers may say anything.
    for step in [[3, 4, 5], [0, 1, 2]] {
        let step = Facts { step: Some(&step), ..facts(&node, &reach, &list) };
        let allotment = decided(&step);
        assert_eq!(allotment.devices, reach);
        assert_eq!(allotment.slurm_order, cards(&[5, 0, 1]));
        assert!(!allotment.bound);
    }
}

#[test]
fn rule_1_a_step_without_a_list_holds_what_the_kernel_leaves_it() {
    let node = node(&INV8P);
    let (list, reach, all) =
        (gres(&node, 0..8), cards(&[0, 1, 5]), cards(&[0, 1, 2, 3, 4, 5, 6, 7]));
    assert_eq!(decided(&facts(&node, &reach, &list)).devices, reach);
    let count = |count| Facts { count: Some(count), ..facts(&node, &all, &list) };
    assert_eq!(decided(&count(8)).devices, all);
    assert_eq!(allotment(&count(3)), Err(Doubt::NoList));
}

#[test]
fn rule_1_a_card_that_is_not_configured_is_not_the_steps_although_it_opens() {
    let node = node(&[0, 1, 2, 3]);
    let (list, reach) = (gres(&node, [2, 3]), cards(&[0, 1, 3]));
    let step = Facts { step: Some(&[1]), ..facts(&node, &reach, &list) };
    assert_eq!(decided(&step).devices, cards(&[3]));
}

#[test]
fn rule_2_positions_in_pci_order_are_ranks() {
    let node = node(&[0, 1, 2, 3]);
    let (list, reach) = (gres(&node, 0..4), cards(&[0, 1, 2, 3]));
    let allotment = decided(&Facts { step: Some(&[2, 3]), ..facts(&node, &reach, &list) });
    assert_eq!((allotment.devices, allotment.caution), (cards(&[2, 3]), None));
}

#[test]
fn rule_2_another_order_follows_the_neighbours_unless_the_site_says_file() {
    let node = node(&INV8P);
    let (list, reach) = (gres(&node, 0..8), cards(&[0, 1, 2, 3, 4, 5, 6, 7]));
    let step = Facts { step: Some(&[0]), ..facts(&node, &reach, &list) };
    let neighbours = decided(&step);
    assert_eq!(neighbours.devices, cards(&[0]));
    let several = decided(&Facts { step: Some(&[3, 4, 5]), ..step });
    assert_eq!(several.slurm_order, cards(&[3, 4, 5]));
    assert_eq!(neighbours.caution, Some(Caution::NotInPciOrder));
    let file = decided(&Facts { reading: Reading::File, ..step });
    assert_eq!((file.devices, file.caution), (cards(&[6]), None));
}

#[test]
fn rule_2_a_rank_outside_the_configured_cards_is_nobodys() {
    let node = node(&[0, 1, 2, 3]);
    let (list, reach) = (gres(&node, [1, 2, 3]), cards(&[0, 1, 2, 3]));
    for position in 0..3 {
        // One reading for all positions: two jobs never meet on a card.
        let step = [position];
        let step = Facts { step: Some(&step), ..facts(&node, &reach, &list) };
        assert_eq!(decided(&step).devices, cards(&[position as usize + 1]));
    }
}

#[test]
fn rule_2_an_unknown_gres_list_is_said() {
    let node = node(&INV8P);
    let reach = cards(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let step = Facts { step: Some(&[3]), positions: None, ..facts(&node, &reach, &[]) };
    let allotment = decided(&step);
    assert_eq!(allotment.devices, cards(&[3]));
    assert_eq!(allotment.caution, Some(Caution::UnknownGresList));
}

#[test]
fn rule_3_a_lost_card_is_never_substituted() {
    let node = node(&[0, 1, 3]); // minor 2 fell off
    let (list, reach) = (gres(&node, 0..4), cards(&[0, 1]));
    let step = Facts { step: Some(&[0, 1, 2]), ..facts(&node, &reach, &list) };
    assert_eq!(allotment(&step), Err(Doubt::NoSuchCard(2)));
    let alone = Facts { step: Some(&[2]), ..facts(&node, &[], &list) };
    assert_eq!(allotment(&alone), Err(Doubt::NoSuchCard(2)));
    let all = cards(&[0, 1, 2]);
    let open = Facts { step: Some(&[2]), ..facts(&node, &all, &list) };
    assert_eq!(allotment(&open), Err(Doubt::NoSuchCard(2)));
}

#[test]
fn rule_3_a_lost_card_does_not_make_the_neighbours_card_the_steps() {
    let node = node(&[0, 1, 2]); // minor 3 fell off
    let (list, reach) = (gres(&node, 0..4), cards(&[0, 1, 2]));
    let step = Facts { step: Some(&[0, 1, 3]), ..facts(&node, &reach, &list) };
    assert_eq!(allotment(&step), Err(Doubt::NoSuchCard(3)));
}

#[test]
fn rule_3_a_bound_task_that_lost_one_of_its_cards_is_in_doubt() {
    let node = node(&[0, 1, 2, 3]);
    let (list, reach) = (gres(&node, 0..4), cards(&[2]));
    let task =
        Facts { step: Some(&[0, 1, 2, 3]), task: Some(&[0, 1]), ..facts(&node, &reach, &list) };
    assert!(allotment(&task).is_err());
}

#[test]
fn rule_3_a_bound_task_is_not_given_all_that_a_lost_card_leaves_of_its_step() {
    let node = node(&[0, 1, 3]); // minor 2 fell off, and nothing is constrained
    let (list, reach) = (gres(&node, 0..4), cards(&[0, 1, 2]));
    let step = Facts { step: Some(&[0, 1, 2, 3]), ..facts(&node, &reach, &list) };
    for number in 0..4 {
        let task = [number];
        let bound = Facts { task: Some(&task), ..step };
        assert_eq!(allotment(&bound), Err(Doubt::NoSuchCard(2)));
    }
}

#[test]
fn rule_4_a_binding_by_the_kernel_is_kept_where_slurms_list_is_empty() {
    let node = node(&[0, 1, 2, 3]); // a mask of cards that the step does not hold: its first one
    let (list, reach) = (gres(&node, 0..4), cards(&[1]));
    let step = Facts { step: Some(&[1, 2, 3]), task: Some(&[]), ..facts(&node, &reach, &list) };
    assert_eq!((decided(&step).devices, decided(&step).bound), (reach.clone(), true));
}

#[test]
fn rule_3_behind_a_card_that_autodetect_lost_a_rank_is_another_jobs_card() {
    let node = node(&[0, 1, 3]); // minor 2 fell off
    let all = cards(&[0, 1, 2]);
    let lost = Facts { positions: None, cards_gone: true, ..facts(&node, &all, &[]) };
    // The second holds as many as open, and one of them is its neighbour's.
    for step in [&[2][..], &[1, 2, 3]] {
        assert_eq!(allotment(&Facts { step: Some(step), ..lost }), Err(Doubt::CardsGone));
    }
    // Where the kernel tells, nothing is in doubt.
    let own = cards(&[2]);
    let constrained = Facts { step: Some(&[3]), reach: &own, ..lost };
    assert_eq!((decided(&constrained).devices, decided(&constrained).caution), (own, None));
}

#[test]
fn rule_3_a_bound_task_gets_nothing_that_its_step_does_not_hold() {
    let node = node(&[0, 1, 2, 3]);
    let (list, reach) = (gres(&node, 0..4), cards(&[0, 1, 2, 3]));
    let step = Facts { step: Some(&[2, 3]), ..facts(&node, &reach, &list) };
    let numbered = Facts { task: Some(&[7]), ..step };
    assert_eq!(allotment(&numbered), Err(Doubt::NotTheSteps(7)));
    let other = [Some(Device::whole(0))];
    let named = Facts { named: Some(&other), ..step };
    assert_eq!(allotment(&named), Err(Doubt::Missing { given: 1, reached: 0 }));
}

#[test]
fn rule_4_a_binding_by_the_kernel_is_kept() {
    let node = node(&INV8P);
    let (list, reach) = (gres(&node, 0..8), cards(&[1]));
    let task = Facts { step: Some(&[3, 4, 5]), task: Some(&[0]), ..facts(&node, &reach, &list) };
    let allotment = decided(&task);
    assert_eq!((allotment.devices, allotment.bound), (cards(&[1]), true));
}

#[test]
fn rule_4_a_binding_by_variable_counts_places_in_slurms_order() {
    let node = node(&INV8P);
    // Reversed lines: position 0 is minor 7; the step holds minors 4 and 3.
    let (list, reach) = (gres(&node, (0..8).rev()), cards(&[0, 5]));
    let task = Facts { step: Some(&[3, 4]), task: Some(&[1]), ..facts(&node, &reach, &list) };
    let allotment = decided(&task);
    assert_eq!((allotment.devices, allotment.bound), (cards(&[5]), true));
}

#[test]
fn rule_4_a_binding_on_an_unconstrained_node_is_a_list_of_positions() {
    let node = node(&[0, 1, 2, 3]);
    let (list, reach) = (gres(&node, 0..4), cards(&[0, 1, 2, 3]));
    let task = Facts { step: Some(&[1, 2]), task: Some(&[2]), ..facts(&node, &reach, &list) };
    let allotment = decided(&task);
    assert_eq!((allotment.devices, allotment.bound), (cards(&[2]), true));
}

#[test]
fn rule_4_on_an_unconstrained_node_places_are_told_from_positions() {
    let node = node(&[0, 1, 2, 3]);
    let (list, reach) = (gres(&node, 0..4), cards(&[0, 1, 2, 3]));
    let bound_to = |number: u32, first_place| {
        let task = [number];
        let step = Facts { step: Some(&[1, 2, 3]), ..facts(&node, &reach, &list) };
        let bound = decided(&Facts { task: Some(&task), first_place, ..step });
        assert!(bound.bound);
        bound.devices
    };
    // allow-task-sharing: 0, 1, 2. Without it: 1, 2, 3.
    for place in 0..3 {
        assert_eq!(bound_to(place as u32, Some(place)), cards(&[place + 1]));
        assert_eq!(bound_to(place as u32 + 1, Some(place)), cards(&[place + 1]));
    }
    assert_eq!(bound_to(0, None), cards(&[1]));
    assert_eq!(bound_to(1, None), cards(&[1]));
}

#[test]
fn rule_4_a_binding_by_uuid_is_kept_however_devices_are_constrained() {
    let node = node(&INV8P);
    let list = gres(&node, 0..8);
    let named = [Some(Device::whole(5))];
    let step = [3, 4, 5];
    let all = cards(&[0, 1, 2, 3, 4, 5, 6, 7]);
    for reach in [cards(&[5]), cards(&[0, 1, 5]), all] {
        let task = Facts { step: Some(&step), named: Some(&named), ..facts(&node, &reach, &list) };
        let allotment = decided(&Facts { reading: Reading::File, ..task });
        assert_eq!((allotment.devices, allotment.bound), (cards(&[5]), true));
    }
    let reach = cards(&[0, 1]);
    let lost = Facts { step: Some(&step), named: Some(&named), ..facts(&node, &reach, &list) };
    assert_eq!(allotment(&lost), Err(Doubt::Missing { given: 1, reached: 0 }));
}

#[test]
fn rule_4_numbers_that_are_no_positions_of_the_step_are_places_within_it() {
    let node = node(&[0, 1, 2, 3]);
    let (list, reach) = (gres(&node, 0..4), cards(&[0, 1, 2, 3]));
    let step = Facts { step: Some(&[2, 3]), ..facts(&node, &reach, &list) };
    for (place, card) in [([0], [2]), ([1], [3])] {
        let task = decided(&Facts { task: Some(&place), ..step });
        assert_eq!((task.devices, task.bound), (cards(&card), true));
    }
}

#[test]
fn rule_8_a_step_without_cards_is_nothing_to_speak_of() {
    let node = node(&[0, 1]);
    let list = gres(&node, 0..2);
    assert_eq!(allotment(&facts(&node, &[], &list)), Ok(None));
    assert_eq!(allotment(&facts(&node, &cards(&[0, 1]), &list)), Ok(None));
}
