//! Entry points for random input.

use crate::platform::PlatformFile;
use crate::task_pages::{PageRow, TaskPages};

/// Reads the pages of a file as those of the tasks, from this page on; the number of rows, or `None` if the pages are not as expected.
pub fn read_task_pages(file: &dyn PlatformFile, root: u32, count: u32) -> Option<usize> {
    let mut rows = 0;
    let each = |row: PageRow<'_>| {
        if let PageRow::Local(task) = &row {
            std::hint::black_box((task.key, task.body_bytes, task.subqueue));
        }
        rows += 1;
        Some(())
    };
    TaskPages::of_any_bytes(file, root, count).each(each).map(|()| rows)
}
