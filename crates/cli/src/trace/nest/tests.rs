use super::*;

/// A thread whose calls are written as `in`, `out` and `lost`; each event is 10 ticks after the one before.
struct Thread {
    tid: u64,
    now: u64,
    sp: u64,
    open: Vec<Event>,
    events: Vec<Event>,
}

impl Thread {
    fn new(tid: u64) -> Thread {
        Thread { tid, now: 100, sp: 0x7fff_0000, open: Vec::new(), events: Vec::new() }
    }

    fn enter(&mut self, function: u32) -> &mut Thread {
        self.now += 10;
        self.sp -= 64;
        let place = self.sp | u64::from(function) << 48;
        let event = Event {
            stamp: self.now,
            place,
            function,
            is_exit: false,
            tid: self.tid,
            values: [0; 3],
            ..Event::default()
        };
        self.open.push(event);
        self.events.push(event);
        self
    }

    fn leave(&mut self) -> &mut Thread {
        self.now += 10;
        self.sp += 64;
        let entry = self.open.pop().unwrap();
        self.events.push(Event { stamp: self.now, is_exit: true, values: [7, entry.stamp, 0], ..entry });
        self
    }

    /// Goes back to the outermost call but `left` without a return.
    fn leap(&mut self, left: usize) -> &mut Thread {
        self.sp += 64 * (self.open.len() - left) as u64;
        self.open.truncate(left);
        self
    }
}

/// What is shown, as depth, function, and `{`, `}` or `;`; with `?` where no end was seen.
fn shown(nest: &mut Nest, events: &[Event]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut give = |step: Step| {
        let (mark, is_over) = match step.what {
            What::Opens => ("{", true),
            What::Closes(exit) => ("}", exit.is_some()),
            What::Leaf(exit) => (";", exit.is_some()),
        };
        lines.push(format!("{}:{}{mark}{}", step.depth, step.entry.function, if is_over { "" } else { "?" }));
    };
    events.iter().for_each(|event| nest.take(event, &mut give));
    nest.rest(&mut give);
    lines
}

#[test]
fn calls_are_nested_as_they_were_made() {
    let mut thread = Thread::new(1);
    thread.enter(1).enter(2).leave().enter(3).enter(3).leave().leave().leave();
    let mut nest = Nest::new(0, usize::MAX);
    let lines = shown(&mut nest, &thread.events);
    assert_eq!(lines, ["0:1{", "1:2;", "1:3{", "2:3;", "1:3}", "0:1}"]);
    assert_eq!((nest.not_kept, nest.shorter, nest.open), (0, 0, 0));
}

#[test]
fn what_was_left_without_a_return_ends_when_its_stack_is_used_again() {
    let mut thread = Thread::new(1);
    thread.enter(1).enter(2).enter(3).leap(1).enter(4).leave().leave();
    assert_eq!(
        shown(&mut Nest::new(0, usize::MAX), &thread.events),
        ["0:1{", "1:2{", "2:3;?", "1:2}?", "1:4;", "0:1}"]
    );
    let mut thread = Thread::new(1);
    thread.enter(1).enter(2).enter(3).leap(1).leave();
    assert_eq!(
        shown(&mut Nest::new(0, usize::MAX), &thread.events),
        ["0:1{", "1:2{", "2:3;?", "1:2}?", "0:1}"]
    );
}

#[test]
fn a_call_on_another_stack_is_inside_of_the_one_that_it_interrupted() {
    let mut thread = Thread::new(1);
    thread.enter(1).enter(2);
    let before = thread.sp;
    thread.sp += 1 << 30;
    thread.enter(9).leave();
    thread.sp = before;
    thread.leave().leave();
    assert_eq!(
        shown(&mut Nest::new(0, usize::MAX), &thread.events),
        ["0:1{", "1:2{", "2:9;", "1:2}", "0:1}"]
    );
}

#[test]
fn of_short_calls_only_those_are_shown_that_hold_a_long_one() {
    let mut thread = Thread::new(1);
    thread.enter(1).enter(2).leave().enter(3);
    thread.now += 1000;
    thread.leave().enter(2).leave().leave();
    let mut nest = Nest::new(500, usize::MAX);
    assert_eq!(shown(&mut nest, &thread.events), ["0:1{", "1:3;", "0:1}"]);
    assert_eq!(nest.shorter, 2);
}

#[test]
fn threads_are_apart_and_those_that_cannot_be_told_apart_are_not_nested() {
    let (mut one, mut two) = (Thread::new(1), Thread::new(2));
    one.enter(1).enter(2).leave().leave();
    two.now += 5;
    two.enter(3).enter(4).leave().leave();
    let mut all = [one.events.clone(), two.events].concat();
    all.sort_by_key(|event| event.stamp);
    let lines = shown(&mut Nest::new(0, usize::MAX), &all);
    assert_eq!(lines, ["0:1{", "0:3{", "1:2;", "1:4;", "0:1}", "0:3}"]);
    one.events.iter_mut().for_each(|event| event.tid = 0);
    assert_eq!(shown(&mut Nest::new(0, usize::MAX), &one.events), ["0:2;", "0:1;"]);
}

#[test]
fn an_exit_without_its_entry_is_shown_where_it_was() {
    let mut thread = Thread::new(1);
    thread.enter(1).enter(2).leave().leave();
    thread.events.remove(1);
    assert_eq!(shown(&mut Nest::new(0, usize::MAX), &thread.events), ["0:1{", "1:2;", "0:1}"]);
}

#[test]
fn the_graph_has_a_node_for_each_way_and_what_was_spent_inside() {
    let mut thread = Thread::new(1);
    thread.enter(1).enter(2).leave().enter(2).leave().leave().enter(2).leave();
    let mut nest = Nest::new(0, usize::MAX);
    thread.events.iter().for_each(|event| nest.take(event, |_| ()));
    let graph: Vec<_> = nest
        .graph()
        .into_iter()
        .map(|(depth, n)| (depth, n.function, n.calls, n.returned, n.ticks, n.inside))
        .collect();
    assert_eq!(graph, [(0, 1, 1, 1, 50, 20), (1, 2, 2, 2, 20, 0), (0, 2, 1, 1, 10, 0)]);
}

#[test]
fn what_nobody_ends_is_bounded() {
    let mut nest = Nest::new(0, usize::MAX);
    let mut event =
        Event { stamp: 1, place: 0, function: 1, is_exit: false, tid: 1, values: [0; 3], ..Event::default() };
    let mut lines = 0u64;
    for n in 0..OPEN_MAX as u64 + 10 {
        // Each deeper than the one before.
        (event.stamp, event.place) = (n, (1 << 40) - n * 16);
        nest.take(&event, |_| lines += 1);
    }
    assert_eq!((nest.open, nest.not_kept), (OPEN_MAX, 10));
    assert_eq!((nest.nodes.len(), nest.no_way), (NODES_MAX, (OPEN_MAX - NODES_MAX + 1) as u64));
    event.tid = 0;
    let mut nest = Nest::new(0, usize::MAX);
    (0..3 * UNKNOWN_MAX).for_each(|_| nest.take(&event, |_| lines += 1));
    assert_eq!(nest.open, UNKNOWN_MAX);
    assert!(lines > OPEN_MAX as u64);
}

#[test]
fn no_call_is_given_that_is_inside_of_so_many_others() {
    let mut thread = Thread::new(7);
    thread
        .enter(1)
        .enter(2)
        .enter(3)
        .leave()
        .enter(3)
        .enter(4)
        .leave()
        .leave()
        .leave()
        .enter(5)
        .leave()
        .leave();
    let given = |over: u64, depth: usize| {
        let mut nest = Nest::new(over, depth);
        let lines = shown(&mut nest, &thread.events);
        (lines.join(" "), nest.deeper)
    };
    assert_eq!(given(0, 1), ("0:1;".into(), 5));
    assert_eq!(given(0, 2), ("0:1{ 1:2; 1:5; 0:1}".into(), 3));
    assert_eq!(given(0, 3).1, 1);
    assert_eq!(given(0, 4), given(0, usize::MAX));
    // What took long enough further inside has made those around it long enough.
    assert_eq!(given(30, 2), ("0:1{ 1:2; 0:1}".into(), 3));
}
