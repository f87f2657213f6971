"""The dashboard: a Streamlit app over run directories, one file a page; see `app`."""
