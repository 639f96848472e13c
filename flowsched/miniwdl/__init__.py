"""WDL without Cromwell: a container backend for miniwdl, which keeps the DAG while flowsched runs its calls.

miniwdl finds it by entry points (`miniwdl.plugin.container_backend`, `.task`, `.workflow`); see docs/wdl.md. It knows the service
by the SDK only.
"""
