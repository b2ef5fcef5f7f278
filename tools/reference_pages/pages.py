"""All pages of the reference, by their file names."""

from reference_pages import api, errors, job_file, metrics, models, verbs


def pages() -> dict[str, str]:
    """Return the text of every page."""
    return {
        "cli.md": verbs.page(),
        "job-file.md": job_file.page(),
        "api.md": api.gateway_page(),
        "control-api.md": api.control_page(),
        "errors.md": errors.page(),
        "metrics.md": metrics.page(),
        "models.md": models.page(),
    }
