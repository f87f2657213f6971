import streamlit as st


def show(directory):
    st.title("later")
