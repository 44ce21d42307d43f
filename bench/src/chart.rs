//! Figures as bars, in SVG files beside the report.

use plotters::prelude::*;

use crate::rows::Table;

const WIDTH: u32 = 720;
const BAR: u32 = 26;
/// Room for the names on the left and the figures on the right.
const NAMES: u32 = 220;
const FIGURES: i32 = 70;
const TEXT: (&str, u32) = ("sans-serif", 14);

/// A bar for each contestant that has a figure; the first, which is ours, in a colour of its own.
pub(crate) fn bars(table: &Table) -> anyhow::Result<String> {
    let bars: Vec<(&str, f64)> = table
        .samples
        .iter()
        .filter_map(|samples| Some((&samples.name[..], samples.median()?)))
        .collect();
    let longest = bars
        .iter()
        .map(|(_, value)| *value)
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = String::new();
    {
        let height = BAR * (u32::try_from(bars.len())? + 1) + 16;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        // A paper of its own: the report may be read on dark.
        root.fill(&WHITE)?;
        let title = format!("{} ({})", table.title, table.unit);
        root.draw(&Text::new(title, (8, 8), TEXT.into_font().color(&BLACK)))?;
        for (nth, (name, value)) in bars.iter().enumerate() {
            let top = i32::try_from(BAR * (u32::try_from(nth)? + 1) + 8)?;
            let left = i32::try_from(NAMES)?;
            let room = f64::from(i32::try_from(WIDTH)? - left - FIGURES);
            let right = left + (room * value / longest).round() as i32;
            let colour = if nth == 0 {
                RGBColor(47, 111, 219)
            } else {
                RGBColor(154, 165, 181)
            };
            let corners = [(left, top), (right, top + i32::try_from(BAR)? - 6)];
            root.draw(&Rectangle::new(corners, colour.filled()))?;
            root.draw(&Text::new(
                (*name).to_owned(),
                (8, top + 3),
                TEXT.into_font().color(&BLACK),
            ))?;
            let figure = format!("{value:.2}");
            root.draw(&Text::new(
                figure,
                (right + 6, top + 3),
                TEXT.into_font().color(&BLACK),
            ))?;
        }
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Samples;

    #[test]
    fn a_bar_is_as_long_as_its_figure() {
        let samples = |name: &str, rounds: &[f64]| Samples {
            name: name.into(),
            rounds: rounds.iter().map(|value| vec![*value]).collect(),
            failure: None,
        };
        let table = Table {
            title: "a < b".into(),
            unit: "s",
            samples: vec![
                samples("ours", &[1.0]),
                samples("theirs", &[2.0]),
                samples("gone", &[]),
            ],
        };
        let svg = bars(&table).unwrap();
        let widths: Vec<u32> = svg
            .split("<rect ")
            .skip(2)
            .map(|rect| {
                let width = rect.split("width=\"").nth(1).unwrap();
                width.split('"').next().unwrap().parse().unwrap()
            })
            .collect();
        assert_eq!(widths.len(), 2, "no bar without a figure: {svg}");
        assert!(widths[0].abs_diff(widths[1] / 2) <= 1, "{widths:?}");
        assert!(svg.contains("a &lt; b") && svg.contains("theirs"), "{svg}");
    }
}
