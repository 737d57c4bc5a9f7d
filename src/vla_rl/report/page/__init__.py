"""Reports as one page: a training run or a registration as HTML, Markdown, CSV and figures. No torch at import."""
