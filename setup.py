"""Which packages a wheel holds: dashboards/ of the checkout is installed as tpu_perf_dashboards.

Everything else is in pyproject.toml, which can find packages but not rename one.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["tpu_perf", "tpu_perf.*"]), "tpu_perf_dashboards"],
    package_dir={"tpu_perf_dashboards": "dashboards"},
)
