//! How the driver reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, row by row.
//!
//! `Measured` rows were seen on a real card (one H200, driver 580.159); the
//! `Case` rows are those of field case FC-30, `Deduced` ones follow from either
//! or from a manual but were not seen. In a value `{u}` stands for the only
//! card's UUID without its prefix, `{U}` for the same in capitals, `{hex}` for
//! its digits alone.

use sim_cuda::{CudaError, Entry, enumerate};
use sim_node::{Card, DeviceFile, Node, Slice};

const U: &str = "8521313e-ac61-4b15-8300-36430748cd46";

#[derive(Debug)]
enum Seen {
    Measured,
    Case,
    Deduced,
}
use Seen::{Case, Deduced, Measured};

const NONE: Selected = Err(CudaError::NoDevice);
const VOID: Selected = Err(CudaError::InvalidDevice);

fn card(pci: &str, minor: u32, uuid: &str) -> Card {
    Card {
        pci: pci.parse().unwrap(),
        minor,
        uuid: uuid.into(),
        model: "NVIDIA H200".into(),
        ..Card::default()
    }
}

fn one_card() -> Node {
    Node {
        driver: "580.159.04".into(),
        cards: vec![card("0000:00:06.0", 0, &format!("GPU-{U}"))],
        ..Node::default()
    }
}

/// INV4 of the field cases.
fn four_cards() -> Node {
    let uuid = |rank| format!("GPU-00000000-0004-4000-8000-00000000000{rank}");
    let buses = ["11", "31", "51", "71"];
    let cards = buses
        .iter()
        .zip(0..)
        .map(|(bus, rank)| card(&format!("0000:{bus}:00.0"), rank, &uuid(rank)));
    Node { cards: cards.collect(), ..Node::default() }
}

/// INV2H of the field cases: the slow card has the lower address.
fn small_and_big() -> Node {
    let mut cards = vec![
        card("0000:05:00.0", 0, "GPU-00000000-0002-4000-8000-000000000000"),
        card("0000:85:00.0", 1, "GPU-00000000-0002-4000-8000-000000000001"),
    ];
    cards[1].speed = 2.0;
    Node { cards, ..Node::default() }
}

fn everything(_: DeviceFile) -> bool {
    true
}

fn minors(list: Result<Vec<Entry>, CudaError>) -> Result<Vec<usize>, CudaError> {
    list.map(|entries| entries.iter().map(|e| e.minor as usize).collect())
}

fn uuids(list: Result<Vec<Entry>, CudaError>) -> Vec<String> {
    let uuid = |entry: Entry| entry.uuid;
    list.unwrap_or_default().into_iter().map(uuid).collect()
}

/// The minors of the cards that a value selects, in order.
type Selected<'a> = Result<&'a [usize], CudaError>;

fn check(node: &Node, rows: &[(&str, Seen, Selected)]) {
    for (value, seen, expected) in rows {
        let value = value
            .replace("{u}", U)
            .replace("{U}", &U.to_uppercase())
            .replace("{hex}", &U.replace('-', ""));
        let got = enumerate(node, &everything, Some("PCI_BUS_ID"), Some(&value));
        assert_eq!(minors(got), expected.map(<[_]>::to_vec), "[{value}] {seen:?}");
    }
}

#[test]
fn one_card_by_index() {
    let rows = [
        ("0", Measured, Ok(&[0][..])),
        ("1", Measured, NONE),
        ("0,1", Measured, Ok(&[0])),
        ("0,0", Measured, VOID),
        ("0, 0", Measured, VOID),
        ("0 ,0", Measured, VOID),
        ("0,9,0", Measured, Ok(&[0])),
        ("0,-1,0", Measured, Ok(&[0])),
        ("0,x,0", Measured, Ok(&[0])),
        ("0,,0", Measured, Ok(&[0])),
        ("0,,", Measured, Ok(&[0])),
        (",0", Measured, NONE),
        ("", Measured, NONE),
        (" ", Measured, NONE),
        ("+", Measured, NONE),
        ("-1", Measured, NONE),
        ("-1,0", Measured, NONE),
        ("--0", Measured, NONE),
        ("NoDevFiles", Measured, NONE),
        ("none", Measured, NONE),
        ("all", Measured, NONE),
        (" 0", Measured, Ok(&[0])),
        ("\t0", Measured, Ok(&[0])),
        ("0 ", Measured, Ok(&[0])),
        ("+0", Measured, Ok(&[0])),
        ("-0", Measured, Ok(&[0])),
        ("00", Measured, Ok(&[0])),
        ("0x0", Measured, Ok(&[0])),
        ("0x", Measured, Ok(&[0])),
        ("0abc", Measured, Ok(&[0])),
        ("0.5", Measured, Ok(&[0])),
        ("0-1", Measured, Ok(&[0])),
        ("0;1", Measured, Ok(&[0])),
        ("1x", Measured, NONE),
        ("2147483648", Measured, NONE),
        ("4294967295", Measured, NONE),
        ("4294967296", Measured, Ok(&[0])),
        ("-4294967296", Measured, Ok(&[0])),
        ("4294967297", Measured, NONE),
        ("9223372036854775808", Measured, Ok(&[0])),
        ("18446744073709551616", Measured, NONE),
    ];
    check(&one_card(), &rows);
}

#[test]
fn one_card_by_uuid() {
    let rows = [
        ("GPU-{u}", Measured, Ok(&[0][..])),
        ("GPU-{U}", Measured, Ok(&[0])),
        ("GPU-{hex}", Measured, Ok(&[0])),
        ("GPU-8", Measured, Ok(&[0])),
        ("GPU-8521", Measured, Ok(&[0])),
        ("GPU-8521313e-", Measured, Ok(&[0])),
        ("GPU-8521313eac61", Measured, Ok(&[0])),
        ("GPU--", Measured, Ok(&[0])),
        ("GPU-", Measured, NONE),
        ("GPU", Measured, NONE),
        ("GPU-x", Measured, NONE),
        ("GPU-8521x", Measured, NONE),
        ("GPU-8521313e-ac61-4b15-8300-36430748cd4", Measured, Ok(&[0])),
        ("GPU-8521313e-ac61-4b15-8300-36430748cd4g", Measured, NONE),
        ("GPU-{u}x", Measured, Ok(&[0])),
        ("GPU-{u} ", Measured, Ok(&[0])),
        (" GPU-{u}", Measured, NONE),
        ("gpu-{u}", Measured, NONE),
        ("gPU-{u}", Measured, NONE),
        ("{u}", Measured, NONE),
        ("GPU-{u},", Measured, Ok(&[0])),
        ("GPU-{u},GPU-{u}", Measured, VOID),
        ("GPU-{u},GPU-{u},9", Measured, VOID),
        ("GPU-{u},GPU-8521", Measured, VOID),
        ("GPU-ffffffff-0000-0000-0000-000000000000", Measured, NONE),
        ("GPU-{u},GPU-ffffffff-0000-0000-0000-000000000000", Measured, Ok(&[0])),
        ("0,GPU-{u}", Measured, Ok(&[0])),
        ("GPU-{u},0", Measured, Ok(&[0])),
        ("0,GPU-{u},GPU-{u}", Measured, Ok(&[0])),
        ("GPU-{u},0,0", Measured, Ok(&[0])),
        ("MIG-{u}", Measured, Ok(&[0])),
        ("MIG-8521", Measured, Ok(&[0])),
        ("MIG-{u}/0/0", Measured, Ok(&[0])),
        ("MIG-", Measured, NONE),
        ("mig-{u}", Measured, NONE),
        ("MIG-GPU-{u}", Measured, NONE),
        ("MIG-GPU-{u}/0/0", Measured, NONE),
        ("MIG-{u},0", Measured, Ok(&[0])),
        ("0,MIG-{u}", Measured, Ok(&[0])),
        ("GPU-{u},MIG-{u}", Measured, VOID),
        ("MIG-{u},GPU-{u}", Measured, VOID),
        ("MIG-{u},MIG-{u}", Measured, VOID),
    ];
    check(&one_card(), &rows);
}

#[test]
fn four_cards_of_the_field_case() {
    let rows = [
        ("", Case, NONE),
        ("-1", Case, NONE),
        ("NoDevFiles", Case, NONE),
        ("none", Case, NONE),
        ("0,2,-1,1", Case, Ok(&[0, 2][..])),
        ("0,1,9,2", Case, Ok(&[0, 1])),
        ("0,1,2,3,0", Case, VOID),
        ("1x,2yz", Case, Ok(&[1, 2])),
        ("0,1,", Case, Ok(&[0, 1])),
        ("0, 1", Deduced, Ok(&[0, 1])),
        ("3,1", Deduced, Ok(&[3, 1])),
        ("GPU-00000000-0004-4000-8000-000000000002", Case, Ok(&[2])),
        ("GPU-00000000-0004", Case, NONE),
        ("GPU--", Deduced, NONE),
        (
            "GPU-00000000-0004-4000-8000-000000000002,GPU-00000000-0004-4000-8000-000000000002",
            Case,
            VOID,
        ),
        ("GPU-00000000-0004-4000-8000-000000000002,1", Deduced, Ok(&[2])),
        ("1,GPU-00000000-0004-4000-8000-000000000002", Deduced, Ok(&[1])),
    ];
    check(&four_cards(), &rows);
    let unset = enumerate(&four_cards(), &everything, Some("PCI_BUS_ID"), None);
    assert_eq!(minors(unset), Ok(vec![0, 1, 2, 3]));
}

/// All rows but `FASTEST_FIRST`'s order were measured: a misspelt order costs
/// the process every card, whatever CUDA_VISIBLE_DEVICES says.
#[test]
fn an_unknown_order_is_an_error() {
    for order in
        ["", "x", "0", "pci_bus_id", "fastest_first", " PCI_BUS_ID", "PCI_BUS_ID ", "PCI_BUS_IDx"]
    {
        for visible in [None, Some("")] {
            let got = enumerate(&one_card(), &everything, Some(order), visible);
            assert_eq!(minors(got), Err(CudaError::InvalidDevice), "[{order}]");
        }
    }
}

/// FC-10: without CUDA_DEVICE_ORDER the same number is another card.
#[test]
fn the_default_order_is_fastest_first() {
    let by_order =
        |order, visible| minors(enumerate(&small_and_big(), &everything, order, visible));
    for fastest in [None, Some("FASTEST_FIRST")] {
        assert_eq!(by_order(fastest, None), Ok(vec![1, 0]));
        assert_eq!(by_order(fastest, Some("1")), Ok(vec![0]));
    }
    assert_eq!(by_order(Some("PCI_BUS_ID"), None), Ok(vec![0, 1]));
    assert_eq!(by_order(Some("PCI_BUS_ID"), Some("1")), Ok(vec![1]));
}

/// FC-12: addresses are numbers; equals in speed come by address too.
#[test]
fn pci_order_is_numeric() {
    let buses = ["00000010:00:00.0", "00000002:00:00.0", "0000B183:00:00.0", "00000009:01:00.0"];
    let cards = buses.iter().zip(0..).map(|(pci, minor)| card(pci, minor, &format!("GPU-{minor}")));
    let node = Node { cards: cards.collect(), ..Node::default() };
    for order in [None, Some("PCI_BUS_ID")] {
        let got = enumerate(&node, &everything, order, None);
        assert_eq!(minors(got), Ok(vec![1, 3, 0, 2]));
    }
}

#[test]
fn indices_and_names_reach_only_what_the_process_may_open() {
    let own = |file| matches!(file, DeviceFile::Card(2 | 3));
    let got = |visible| minors(enumerate(&four_cards(), &own, Some("PCI_BUS_ID"), visible));
    assert_eq!(got(None), Ok(vec![2, 3]));
    assert_eq!(got(Some("1,0")), Ok(vec![3, 2]));
    assert_eq!(got(Some("2,3")), Err(CudaError::NoDevice));
    let others = "GPU-00000000-0004-4000-8000-000000000000";
    assert_eq!(got(Some(others)), Err(CudaError::NoDevice));
    let nothing = enumerate(&four_cards(), &|_| false, None, None);
    assert_eq!(minors(nothing), Err(CudaError::NoDevice));
}

#[test]
fn a_card_that_is_lost_gone_or_excluded_is_not_enumerated() {
    let mut node = four_cards();
    node.cards[0].lost = true;
    node.cards[1].gone = true;
    node.cards[2].excluded = true;
    let got = enumerate(&node, &everything, Some("PCI_BUS_ID"), None);
    assert_eq!(minors(got), Ok(vec![3]));
}

fn slice(name: u32, gi: u32, ci: u32) -> Slice {
    Slice {
        uuid: format!("MIG-00000000-00a0-5000-8000-00000000000{name}"),
        gi,
        ci,
        profile: "1g.10gb".into(),
        cap_minors: [30 + 10 * name, 31 + 10 * name],
        ..Slice::default()
    }
}

fn mig(name: u32) -> String {
    slice(name, 0, 0).uuid
}

/// FC-35's parents and slices, and a whole card after them.
fn sliced(driver: &str) -> Node {
    let mut node = four_cards();
    node.driver = driver.into();
    node.cards.truncate(3);
    node.cards[0].slices = vec![slice(0, 7, 0)];
    node.cards[1].slices = vec![slice(1, 7, 0), slice(2, 7, 1), slice(3, 9, 0)];
    node
}

/// The MIG user guide: up to R565 "a single CUDA process can only enumerate a
/// single MIG device", and no whole card beside it.
#[test]
fn older_drivers_enumerate_one_slice_and_nothing_else() {
    let node = sliced("535.129.03");
    let got = |visible| uuids(enumerate(&node, &everything, Some("PCI_BUS_ID"), visible));
    assert_eq!(got(None), [mig(0)]);
    assert_eq!(got(Some("0,1,2,3")), [mig(0)]);
    let two = format!("{},{}", mig(3), mig(1));
    assert_eq!(got(Some(&two)), [mig(3)], "FC-30: two MIG names give one");
    let whole = "GPU-00000000-0004-4000-8000-000000000002";
    assert_eq!(got(Some(whole)), [whole]);
}

/// The same guide: from R570 one compute instance of each GPU instance, beside
/// whole cards.
#[test]
fn newer_drivers_enumerate_a_slice_of_each_instance() {
    let node = sliced("570.86.10");
    let got = |visible| uuids(enumerate(&node, &everything, Some("PCI_BUS_ID"), visible));
    let whole = "GPU-00000000-0004-4000-8000-000000000002".to_owned();
    assert_eq!(got(None), [whole, mig(0), mig(1), mig(3)]);
    let all = [mig(3), mig(2), mig(1), mig(0)].join(",");
    assert_eq!(got(Some(&all)), [mig(3), mig(2), mig(0)]);
}

#[test]
fn both_spellings_name_a_slice_and_a_parent_stands_for_its_first() {
    for driver in ["535.129.03", "580.159.04"] {
        let node = sliced(driver);
        let got = |name: &str| {
            let list = enumerate(&node, &everything, Some("PCI_BUS_ID"), Some(name));
            uuids(list)
        };
        let parent = "GPU-00000000-0004-4000-8000-000000000001";
        assert_eq!(got(&mig(2)), [mig(2)]);
        assert_eq!(got(&format!("MIG-{parent}/7/1")), [mig(2)]);
        assert_eq!(got(parent), [mig(1)]);
    }
}

#[test]
fn a_slice_needs_its_card_and_both_capabilities() {
    let node = sliced("535.129.03");
    let with = |files: &'static [DeviceFile]| {
        let list = enumerate(&node, &|file| files.contains(&file), None, None);
        uuids(list)
    };
    use DeviceFile::{Cap, Card};
    assert_eq!(with(&[Card(1), Cap(50), Cap(51)]), [mig(2)]);
    assert!(with(&[Card(1), Cap(50)]).is_empty());
    assert!(with(&[Card(0), Cap(50), Cap(51)]).is_empty());
    assert!(with(&[Card(0), Card(1)]).is_empty());
}
