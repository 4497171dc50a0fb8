//! Folded stacks as a picture that can be searched and zoomed into: one SVG file that needs nothing else.
//!
//! For:     `count --flame`, `report`; the page, which has it inside.
//! State:   none.
//! Context: control.
//! Keeps:   P1 a box is as wide as its share of all counts, and stands on that of its caller.
//!          P2 the file is well-formed, whatever names there are.
//! Checked: tests below.

use crate::Folded;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: f64 = 17.0;
const ABOVE: f64 = 56.0;
const BELOW: f64 = 30.0;
/// Narrower boxes are left out; who is in them is in their callers still.
const LEAST: f64 = 0.2;
/// Width of a letter.
const LETTER: f64 = 7.2;
/// Deeper calls are left out.
const DEPTH_MAX: usize = 256;

const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");

#[derive(Default)]
struct Node {
    count: u64,
    before: u64,
    children: BTreeMap<String, Node>,
}

impl Node {
    fn add(&mut self, stack: &[String], count: u64, before: u64) {
        self.count = self.count.saturating_add(count);
        self.before = self.before.saturating_add(before);
        if let Some((first, rest)) = stack.split_first() {
            self.children.entry(first.clone()).or_default().add(rest, count, before);
        }
    }

    fn depth(&self) -> usize {
        1 + self.children.values().map(Node::depth).max().unwrap_or(0)
    }
}

/// The picture; with an older run's stacks each box says by colour whether its share has grown.
pub fn svg(stacks: &Folded, before: Option<&Folded>, title: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n{}",
        element(stacks, before, title)
    )
}

/// The same as an element of a page.
pub fn element(stacks: &Folded, before: Option<&Folded>, title: &str) -> String {
    let mut root = Node::default();
    stacks.iter().for_each(|(stack, n)| root.add(&stack[..stack.len().min(DEPTH_MAX)], *n, 0));
    for (stack, n) in before.into_iter().flatten() {
        root.add(&stack[..stack.len().min(DEPTH_MAX)], 0, *n);
    }
    let height = ABOVE + root.depth() as f64 * ROW + BELOW;
    let mut picture =
        Picture { out: String::new(), root: (root.count, root.before), height, is_diff: before.is_some() };
    picture.head(title);
    picture.node("all", &root, 0, 0);
    let _ = write!(picture.out, "</g>\n<script>//<![CDATA[\n{SCRIPT}\n//]]></script>\n</svg>\n");
    picture.out
}

struct Picture {
    out: String,
    /// All counts, now and before.
    root: (u64, u64),
    height: f64,
    is_diff: bool,
}

impl Picture {
    fn head(&mut self, title: &str) {
        let (height, title) = (self.height, escaped(title));
        let _ = write!(
            self.out,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="100%" font-family="ui-monospace, monospace" font-size="12">
<style>{STYLE}</style>
<rect class="ground" width="100%" height="100%"/>
<text class="title" x="{middle}" y="22" text-anchor="middle" font-size="15">{title}</text>
<text id="reset" class="button" x="{MARGIN}" y="42">Reset zoom</text>
<text id="search" class="button" x="{right}" y="42" text-anchor="end">Search</text>
<text id="detail" x="{MARGIN}" y="{detail}"> </text>
<text id="matched" x="{right}" y="{detail}" text-anchor="end"> </text>
<g id="frames">
"##,
            middle = WIDTH / 2.0,
            right = WIDTH - MARGIN,
            detail = height - 10.0,
        );
    }

    /// One box and those that stand on it; `from`: counts to the left of it.
    fn node(&mut self, name: &str, node: &Node, from: u64, depth: usize) {
        let all = self.root.0.max(1) as f64;
        let scale = (WIDTH - 2.0 * MARGIN) / all;
        let (x, width) = (MARGIN + from as f64 * scale, node.count as f64 * scale);
        if width < LEAST {
            return;
        }
        let y = self.height - BELOW - (depth + 1) as f64 * ROW;
        let share = node.count as f64 / all * 100.0;
        let mut about = format!("{name}: {}, {share:.2} %", node.count);
        let colour = if self.is_diff {
            let was = node.before as f64 / self.root.1.max(1) as f64 * 100.0;
            let _ = write!(about, ", {:+.2} points", share - was);
            changed(share, was)
        } else {
            warm(name)
        };
        let room = ((width - 6.0) / LETTER).max(0.0) as usize;
        let label = if room < 3 { String::new() } else { shortened(name, room) };
        let text_y = y + ROW - 5.0;
        let _ = writeln!(
            self.out,
            r#"<g class="f" data-n="{}" data-c="{}" data-f="{from}" data-d="{depth}"><title>{}</title><rect x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{:.1}" fill="{colour}" rx="2"/><text x="{:.2}" y="{text_y:.1}">{}</text></g>"#,
            escaped(name),
            node.count,
            escaped(&about),
            ROW - 1.0,
            x + 3.0,
            escaped(&label),
        );
        let mut at = from;
        for (child, inner) in &node.children {
            self.node(child, inner, at, depth + 1);
            at += inner.count;
        }
    }
}

fn shortened(name: &str, room: usize) -> String {
    if name.chars().count() <= room {
        return name.to_owned();
    }
    let kept: String = name.chars().take(room.saturating_sub(2)).collect();
    kept + ".."
}

/// A colour between red and yellow, the same for the same name.
fn warm(name: &str) -> String {
    let hash =
        name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("hsl({}, {}%, {}%)", hash % 55, 70 + (hash >> 8) % 20, 58 + (hash >> 16) % 12)
}

/// Red where the share has grown, blue where it has shrunk, the more the stronger.
fn changed(share: f64, was: f64) -> String {
    let strength = ((share - was).abs() / share.max(was).max(0.01)).min(1.0);
    let hue = if share >= was { 10 } else { 220 };
    format!("hsl({hue}, {:.0}%, {:.0}%)", 20.0 + 70.0 * strength, 82.0 - 22.0 * strength)
}

/// A text as XML has it; what XML cannot have is a question mark.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(all: &[(&str, u64)]) -> Folded {
        all.iter().map(|(stack, n)| (stack.split(';').map(str::to_owned).collect(), *n)).collect()
    }

    /// Name, left, width and top of each box.
    fn boxes(svg: &str) -> Vec<(String, f64, f64, f64)> {
        let number = |line: &str, name: &str| {
            let rect = line.split_once("<rect ").unwrap().1;
            let text = rect.split_once(&format!("{name}=\"")).unwrap().1.split_once('"').unwrap().0;
            text.parse::<f64>().unwrap()
        };
        let lines = svg.lines().filter(|line| line.starts_with("<g class=\"f\""));
        let name = |line: &str| line.split_once("data-n=\"").unwrap().1.split_once('"').unwrap().0.to_owned();
        lines.map(|l| (name(l), number(l, "x"), number(l, "width"), number(l, "y"))).collect()
    }

    #[test]
    fn a_box_is_as_wide_as_its_share_and_stands_on_its_caller() {
        let svg = svg(&stacks(&[("main;a;malloc", 30), ("main;b", 60), ("other", 10)]), None, "t");
        let found = boxes(&svg);
        let of = |name: &str| found.iter().find(|(n, ..)| n == name).unwrap().clone();
        let (all, main, a, b) = (of("all"), of("main"), of("a"), of("b"));
        assert!((all.2 - 1180.0).abs() < 0.1 && (main.2 - 1062.0).abs() < 0.1 && (b.2 - 708.0).abs() < 0.1);
        assert_eq!((main.3 - a.3, all.3 - main.3), (ROW, ROW), "a caller is below");
        assert!((a.1 - main.1).abs() < 0.1 && (b.1 - (a.1 + a.2)).abs() < 0.1, "side by side");
        assert!(svg.contains("malloc: 30, 30.00 %"));
    }

    #[test]
    fn names_with_signs_of_xml_are_written_as_text() {
        let svg = svg(&stacks(&[("std::vector<int>& f();\u{1}\"x\"", 1)]), None, "a & b");
        assert!(
            svg.contains("std::vector&lt;int&gt;&amp; f()")
                && svg.contains("?&quot;x&quot;")
                && svg.contains("a &amp; b")
        );
        let script = svg.split_once("<script>").unwrap().1;
        assert_eq!(script.matches("]]>").count(), 1, "the script does not end early");
    }

    #[test]
    fn what_has_grown_is_red_and_what_has_shrunk_is_blue() {
        let (now, before) = (stacks(&[("a", 75), ("b", 25)]), stacks(&[("a", 25), ("b", 75)]));
        let svg = svg(&now, Some(&before), "t");
        assert!(
            svg.contains("a: 75, 75.00 %, +50.00 points") && svg.contains("b: 25, 25.00 %, -50.00 points")
        );
        let line =
            |name: &str| svg.lines().find(|l| l.contains(&format!("data-n=\"{name}\""))).unwrap().to_owned();
        assert!(line("a").contains("hsl(10,") && line("b").contains("hsl(220,"));
    }
}
